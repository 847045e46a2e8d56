"""The time limits of a database copy: the clock is a mock, and so are both sides of the copy."""

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
import trio
from bson.timestamp import Timestamp
from trio.testing import MockClock

from shardwright.shardd.context.ddl_locks import IndexCreations
from shardwright.shardd.ddl.database_copy import DatabaseCopy
from shardwright.shardd.ddl.move_primary import move_section
from shardwright.shardd.metadata.database_state import DatabaseState
from shardwright.shardd.metadata.namespace_state import NamespaceState, StateTable
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError

if TYPE_CHECKING:
    from shardwright.shardd.context.shard_context import ShardContext
    from shardwright.shardd.ddl.database_copy import MovingDatabase

LAST = Timestamp(7, 1)


class World:
    """Both sides of a copy.

    Args:
        changes: number of times that collections have changed when writes are blocked.
        copy_seconds: duration of the first copy.
        busy: number of times that writes in progress prevent entering the section.
        build_seconds: duration of the index creation of a sharded collection.
    """

    def __init__(
        self, changes: float = 0, copy_seconds: float = 0.5, busy: float = 0, build_seconds: float = 0
    ) -> None:
        self.creations = IndexCreations(StateTable(DatabaseState))
        self.attempts = 0
        self.is_on = False
        self._changes = changes
        self._copy_seconds = copy_seconds
        self._busy = busy
        self._build_seconds = build_seconds

    @property
    def has_changed(self) -> bool:
        return self.attempts <= self._changes

    async def listed(self) -> "MovingDatabase":
        moved: Any = SimpleNamespace(collections={}, views={})
        return cast("MovingDatabase", moved)

    async def wait_followed(self, last: Timestamp) -> None:
        assert last == LAST

    async def present(self) -> dict[str, None]:
        return {}

    async def receive(self, *_: object) -> None:
        pass

    async def is_steady(self) -> bool:
        await trio.sleep(self._copy_seconds)
        self._copy_seconds = 0.5
        return True

    async def finish(self, _: int, after: Timestamp) -> Timestamp:
        return after

    async def try_block_writes(self) -> bool:
        self.attempts += 1
        self.is_on = self.attempts > self._busy
        return self.is_on

    async def operation_time(self) -> Timestamp:
        return LAST

    def leave(self) -> None:
        self.is_on = False

    async def hang_while(self, _: str) -> None:
        await trio.lowlevel.checkpoint()

    async def copy(self) -> Timestamp:
        async def record(*_: object) -> None:
            pass

        context = cast("ShardContext", SimpleNamespace(fail_points=self, index_creations=self.creations, mongod=self))
        both: Any = self
        return await DatabaseCopy(context, "db", both, both, both, record).run()

    async def create_indexes(self, task_status: trio.TaskStatus[None]) -> None:
        async with self.creations.entered("db.sharded"), self.creations.entered("other.sharded"):
            task_status.started()
            await trio.sleep(self._build_seconds)


def copied(world: World) -> tuple[Timestamp | CommandError, float]:
    """Return the result of a copy, and its time."""

    async def main() -> tuple[Timestamp | CommandError, float]:
        result: Timestamp | CommandError
        with trio.fail_after(2000):
            async with trio.open_nursery() as nursery:
                await nursery.start(world.create_indexes)
                try:
                    result = await world.copy()
                except CommandError as error:
                    result = error
        return result, trio.current_time()

    return trio.run(main, clock=MockClock(autojump_threshold=0))


def test_collections_that_change_a_few_times_delay_the_copy() -> None:
    world = World(changes=3)
    result, seconds = copied(world)
    assert result == LAST
    assert seconds < 10
    assert world.is_on


@pytest.mark.parametrize(
    ("world", "code"),
    [
        (World(changes=float("inf")), ErrorCode.ConflictingOperationInProgress),
        (World(busy=float("inf")), ErrorCode.LockBusy),
    ],
    ids=["changes", "writes"],
)
def test_what_does_not_end_ends_the_copy(world: World, code: ErrorCode) -> None:
    """For instance ``$out``: its temporary collection is gone before it can be copied, and no further round follows."""
    result, seconds = copied(world)
    assert isinstance(result, CommandError)
    assert result.code == code
    assert 300 <= seconds <= 320
    assert not world.is_on
    assert world.attempts < 50, "clients are not to be blocked all the time"


@pytest.mark.parametrize("world", [World(changes=2, copy_seconds=1000), World(busy=2, copy_seconds=1000)])
def test_a_long_copy_may_still_be_delayed(world: World) -> None:
    """The time limit begins when everything has been copied."""
    assert copied(world)[0] == LAST


def test_a_creation_of_indexes_delays_the_copy() -> None:
    world = World(busy=2, build_seconds=20)
    result, seconds = copied(world)
    assert result == LAST
    assert seconds > 20
    assert world.attempts == 3


def test_a_long_creation_of_indexes_ends_the_copy() -> None:
    """The operation that would end the creation may have to wait for the move."""
    world = World(build_seconds=1000, copy_seconds=500)
    result, _ = copied(world)
    assert isinstance(result, CommandError)
    assert result.code == ErrorCode.ConflictingOperationInProgress
    assert world.attempts == 0


@pytest.mark.parametrize(
    ("namespace", "is_waited_for"), [("db.c", True), ("db.sharded", False), ("another.c", False), ("db2.c", False)]
)
async def test_the_section_waits_for_writes_of_unsharded_collections(
    autojump_clock: MockClock, namespace: str, is_waited_for: bool
) -> None:
    state, database, forgotten = NamespaceState(namespace, "me"), DatabaseState("db"), list[str]()
    creations = IndexCreations(StateTable(DatabaseState))
    context: Any = SimpleNamespace(
        database=lambda _: database, namespaces=[state], index_creations=creations, forget_database=forgotten.append
    )
    section = move_section(context, "db", {"namespace": "db."}, sharded={"db.sharded"})
    state.enter(is_write=True)
    assert await section.try_block_writes() is not is_waited_for
    assert (database.critical_section is None) is is_waited_for
    section.leave()
    assert forgotten == ["db"]  # once, when the section ended
    state.exit(state.operations, is_write=True)
    async with creations.entered("db.sharded"):
        assert not await section.try_block_writes()
    assert await section.try_block_writes()


async def test_open_transactions_on_any_unsharded_collection_end_the_copy(autojump_clock: MockClock) -> None:
    states, database = [NamespaceState(f"db.{each}", "me") for each in "ab"], DatabaseState("db")
    context: Any = SimpleNamespace(
        database=lambda _: database,
        namespaces=states,
        index_creations=IndexCreations(StateTable(DatabaseState)),
        forget_database=lambda _: None,
    )
    section = move_section(context, "db", {"namespace": "db."})
    states[0].enter(is_write=True)
    states[1].enter_transaction()
    for _ in range(4):
        assert not await section.try_block_writes()
    with pytest.raises(CommandError) as caught:
        await section.try_block_writes()
    assert caught.value.code == ErrorCode.LockTimeout
    assert "the critical section of the database db within 500 milliseconds" in caught.value.message
