"""Sharding a collection while the config servers still execute a commit whose reply was lost."""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast
from uuid import uuid4

import pytest
import trio
from bson.objectid import ObjectId
from bson.timestamp import Timestamp

from shardwright.shardd.ddl import create_collection
from shardwright.shardd.ddl.coordinator import new_session
from shardwright.shardd.ddl.create_collection import COMMIT, CreateCollection, Prepared
from shardwright.shardd.ddl.service import CoordinatorService
from shardwright.shardd.local_mongod.local_collections import LocalCollection
from shardwright.shardd.metadata.namespace_state import NamespaceState
from shardwright.sharding.namespace import Namespace
from shardwright.sharding.shard_key import ShardKeyPattern
from shardwright.sharding.versions import ChunkVersion
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from tests.shardd.ddl.test_coordinator_ends import VERSION, FakeShard, in_term

if TYPE_CHECKING:
    from collections.abc import Iterator

UUID = uuid4()
COMMIT_SECONDS = 60.0
ARGUMENTS = {"shardKey": {"a": 1}}
OUTAGE = CommandError(ErrorCode.FailedToSatisfyReadPreference, "no primary of the config servers")


class FakeShardAndConfig(FakeShard):
    """A shard, and config servers with a lock for the collection. The reply of the first commit is lost.

    Attributes:
        commit_arrives_after: the seconds after which that commit arrives; it then takes `COMMIT_SECONDS`.
        sharded_at: the time at which the collection was sharded.
    """

    def __init__(self, *documents: dict[str, Any]) -> None:
        super().__init__(*documents)
        self.commit_arrives_after = 0.0
        self.sharded_at: float | None = None
        self.late: list[Mapping[str, Any]] = []
        self.is_sent = trio.Event()
        self._lock = trio.Lock()
        self._executed = -1
        self._state = NamespaceState("d.c", "this")

    def namespace(self, _name: str) -> NamespaceState:
        """The collection."""
        return self._state

    async def operation_time(self) -> Timestamp:
        """A time."""
        await trio.lowlevel.checkpoint()
        return Timestamp(1, 1)

    new_timestamp = operation_time

    async def catalog(self) -> "FakeShardAndConfig":
        """The config servers."""
        await trio.lowlevel.checkpoint()
        return self

    async def read(self, rounds: "Iterator[Any]") -> Any:  # noqa: ANN401 - the reader decides
        """The routing table, which is read without the lock."""
        rounds.close()  # type: ignore[attr-defined]
        if self.sharded_at is None:
            return None
        collection = SimpleNamespace(uuid=UUID, unique=False, key_pattern=ShardKeyPattern.from_mapping({"a": 1}))
        return SimpleNamespace(
            collection=collection, collection_version=ChunkVersion(1, 0, ObjectId(), Timestamp(1, 1)), shards={"this"}
        )

    async def commit(self, command: Mapping[str, Any]) -> dict[str, Any]:
        """Execute a command, or lose the connection."""
        if "_configsvrCommitCreateCollection" in command:
            self.late.append(command)
            self.is_sent.set()
            raise CommandError(ErrorCode.HostUnreachable, "connection reset")
        async with self._lock:
            self._executed = int(command["txnNumber"])
            if self.sharded_at is None:
                raise CommandError(ErrorCode.NamespaceNotSharded, "Collection d.c is not sharded.")
        return {}

    async def execute_late(self) -> None:
        """Execute the commit, unless a later command was executed."""
        await trio.sleep(self.commit_arrives_after)
        async with self._lock:
            if self._executed > int(self.late[0]["txnNumber"]):
                return
            await trio.sleep(COMMIT_SECONDS)
            self.sharded_at = trio.current_time()


@pytest.fixture(autouse=True)
def outage(monkeypatch: pytest.MonkeyPatch) -> None:
    """The shard is ready to commit once; later attempts meet an outage."""
    failures: list[CommandError | None] = [None]

    async def prepare(*_: object) -> Prepared:
        await trio.lowlevel.checkpoint()
        error = failures.pop() if failures else OUTAGE
        if error is not None:
            raise error
        return Prepared(LocalCollection("collection", {}, UUID, None), is_empty=True, plan=[])

    async def nothing(*_: object, **_options: object) -> None:
        await trio.lowlevel.checkpoint()

    monkeypatch.setattr(CoordinatorService, "_check_not_blocked", nothing)
    monkeypatch.setattr(create_collection, "log_change", nothing)
    monkeypatch.setattr(create_collection, "make_initial_chunks", lambda *_, **_options: [])
    monkeypatch.setattr(CreateCollection, "_prepare", prepare)
    monkeypatch.setattr(CreateCollection, "_publish", nothing)
    monkeypatch.setattr(CreateCollection, "_log_end", nothing)


def shard_collection(shard: FakeShardAndConfig) -> tuple[dict[str, Any] | CommandError, float]:
    """Shard the collection; return the reply or the error, and its time. Check that operations wait until then."""
    ends: list[tuple[dict[str, Any] | CommandError, float]] = []
    released: list[float] = []

    async def work(changes: CoordinatorService) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(end_run, changes)
            await shard.is_sent.wait()
            nursery.start_soon(shard.execute_late)
            section = shard.namespace("d.c").critical_section
            assert section is not None
            await section.wait_released()
            released.append(trio.current_time())

    async def end_run(changes: CoordinatorService) -> None:
        end: dict[str, Any] | CommandError
        try:
            end = await changes.run(CreateCollection, Namespace("d", "c"), ARGUMENTS, received=VERSION)
        except CommandError as error:
            end = error
        ends.append((end, trio.current_time()))

    in_term(shard, work)
    assert released[0] >= (ends[0][1] if shard.sharded_at is None else shard.sharded_at)
    assert shard.documents == []
    assert shard.namespace("d.c").critical_section is None
    return ends[0]


def test_the_outcome_of_a_commit_is_awaited() -> None:
    shard = FakeShardAndConfig()
    end, time = shard_collection(shard)
    assert isinstance(end, dict)
    assert shard.sharded_at is not None
    assert time >= shard.sharded_at


def test_a_commit_that_has_not_arrived_is_prevented() -> None:
    shard = FakeShardAndConfig()
    shard.commit_arrives_after = 60.0
    end, _ = shard_collection(shard)
    assert end is OUTAGE
    assert shard.sharded_at is None


def test_a_new_primary_awaits_the_outcome_of_the_commit() -> None:
    session = new_session()
    identity = {"namespace": "d.c", "operationType": CreateCollection.operation_type}
    shard = FakeShardAndConfig({"_id": identity, "phase": COMMIT, "session": session, **ARGUMENTS})
    shard.late.append(session)
    shard.is_sent.set()
    restoring = CoordinatorService(cast("Any", shard), cast("Any", None))
    trio.run(restoring.restore_sections, 1)
    section = shard.namespace("d.c").critical_section
    assert section is not None
    assert section.blocks_reads
    end, time = shard_collection(shard)
    assert isinstance(end, dict)
    assert shard.sharded_at is not None
    assert time >= shard.sharded_at
