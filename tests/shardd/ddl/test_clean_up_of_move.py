"""The clean-up of a former primary shard after a ``movePrimary``."""

from types import SimpleNamespace
from typing import Any, cast
from uuid import uuid4

import pytest
import trio
import trio.testing
from bson.binary import Binary
from bson.timestamp import Timestamp

from shardwright.shardd.ddl import move_primary
from shardwright.shardd.ddl.database_copy import DatabaseRecipient
from shardwright.shardd.ddl.move_primary import CLEAN, MovePrimary
from shardwright.shardd.ddl.service import CoordinatorService, run_to_end
from shardwright.shardd.metadata.database_state import DatabaseState
from shardwright.sharding.catalog.documents import DatabaseEntry
from shardwright.sharding.namespace import Namespace
from shardwright.sharding.versions import DatabaseVersion
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from tests.shardd.ddl.test_coordinator_ends import FakeShard, NoMigrations

BEFORE = DatabaseVersion(uuid4(), Timestamp(1, 1), 1)
VIEWS = ["d.view"]
ARGUMENTS: dict[str, Any] = {
    "to": "other",
    "databaseVersion": BEFORE.to_document(),
    "movedAt": Timestamp(1, 2),
    "copies": [],
    "copiedViews": VIEWS,
    "moveId": Binary.from_uuid(uuid4()),
}


def entry(primary: str, moves: int) -> DatabaseEntry:
    """Return the entry of the database after some moves."""
    return DatabaseEntry("d", primary, DatabaseVersion(BEFORE.uuid, BEFORE.timestamp, BEFORE.last_mod + moves))


def recreated(primary: str) -> DatabaseEntry:
    """Return the entry of a newer database."""
    return DatabaseEntry("d", primary, DatabaseVersion(uuid4(), Timestamp(2, 1), 1))


async def done(*_: object, **__: object) -> None:
    await trio.lowlevel.checkpoint()


class FormerPrimary:
    """A shard that was the primary shard of a database.

    Attributes:
        dropped: the names of the views that it has dropped.
        was_open: whether users could create views while views were dropped.
    """

    def __init__(self, entry: DatabaseEntry | None) -> None:
        self.database = DatabaseState("d")
        self.dropped: list[str] = []
        self.was_open = False
        self._entry = entry
        self.context: Any = SimpleNamespace(
            mongod=self,
            namespaces=(),
            database=lambda _: self.database,
            forget_database=lambda _: None,
            catalog=self._catalog,
            refresher=SimpleNamespace(refresh_database=done),
            fail_points=SimpleNamespace(hang_while=done),
            advance_cluster_time=done,
            views=SimpleNamespace(forget=lambda: None),
            require_identity=lambda: SimpleNamespace(shard_name="this"),
        )

    async def _catalog(self) -> Any:  # noqa: ANN401 - of the config servers
        return SimpleNamespace(read=self._read)

    async def _read(self, rounds: Any) -> DatabaseEntry | None:  # noqa: ANN401 - a generator
        rounds.close()
        await trio.lowlevel.checkpoint()
        return self._entry

    async def write(self, *_: object) -> dict[str, Any]:
        """Write the coordinator's document."""
        return {"ok": 1}

    async def drop_views(self, _mongod: object, _db: str, names: list[str]) -> None:
        """Drop views by name."""
        self.was_open = self.database.critical_section is None
        self.dropped += names


@pytest.mark.parametrize(
    ("found", "dropped"),
    [
        (entry("other", 1), VIEWS),
        (entry("third", 2), VIEWS),
        (entry("this", 2), []),
        (recreated("this"), []),
        (recreated("other"), []),
        (None, []),
    ],
    ids=["moved", "moved on", "moved back", "recreated here", "recreated elsewhere", "dropped"],
)
def test_views_of_a_newer_database_are_kept(
    monkeypatch: pytest.MonkeyPatch, found: DatabaseEntry | None, dropped: list[str]
) -> None:
    """The drop of the moved database has dropped its views on all shards."""
    shard = FormerPrimary(found)
    move = MovePrimary(shard.context, NoMigrations(), Namespace("d"), ARGUMENTS, CLEAN)
    monkeypatch.setattr(move_primary, "log_change", done)
    monkeypatch.setattr(move_primary, "drop_exactly", done)
    monkeypatch.setattr(move_primary, "drop_views", shard.drop_views)
    monkeypatch.setattr(DatabaseRecipient, "end", done)
    assert trio.run(run_to_end, move, clock=trio.testing.MockClock(autojump_threshold=0)) == {}
    assert shard.dropped == dropped
    assert not shard.was_open
    assert shard.database.critical_section is None


def test_the_database_is_not_released_by_a_step_down(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next primary continues the clean-up, and could drop views that have been copied back since."""
    shard = FakeShard({"_id": {"namespace": "d.", "operationType": "movePrimary"}, "phase": CLEAN, **ARGUMENTS})
    shard.forget_database = lambda _: None  # type: ignore[attr-defined]
    errors: list[CommandError] = []

    async def clean(_move: MovePrimary) -> dict[str, Any]:
        await trio.sleep_forever()
        return {}

    async def wait(service: CoordinatorService) -> None:
        try:
            await service.wait_database_released("d")
        except CommandError as error:
            errors.append(error)

    async def main() -> None:
        service = CoordinatorService(cast("Any", shard), NoMigrations())
        async with trio.open_nursery() as waiting, trio.open_nursery() as term:
            await service.begin_term(1, term)
            waiting.start_soon(wait, service)
            await trio.testing.wait_all_tasks_blocked()
            term.cancel_scope.cancel()

    monkeypatch.setattr(MovePrimary, "run", clean)
    trio.run(main)
    assert [each.code for each in errors] == [ErrorCode.InterruptedDueToReplStateChange]
