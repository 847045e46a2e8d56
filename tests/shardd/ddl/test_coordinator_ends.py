"""The end of a coordinator, and the removal of its document."""

import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, cast
from uuid import uuid4

import pytest
import trio
import trio.testing
from bson.objectid import ObjectId
from bson.timestamp import Timestamp

from shardwright.daemon.fail_points import FailPoints
from shardwright.daemon.shown_locks import ShownLocks
from shardwright.shardd.context.ddl_locks import DDLLocks
from shardwright.shardd.context.fail_point_names import HANG_IN_DDL_COORDINATOR
from shardwright.shardd.ddl.coordinator import Coordinator
from shardwright.shardd.ddl.database_copy import DatabaseMoves
from shardwright.shardd.ddl.service import (
    COORDINATORS,
    RETRY_SECONDS,
    RETRY_SECONDS_MAX,
    CoordinatorService,
)
from shardwright.shardd.exchange.remote_sets import ShardIdentity
from shardwright.shardd.metadata.database_state import DatabaseState
from shardwright.sharding.catalog.documents import DatabaseEntry
from shardwright.sharding.namespace import Namespace
from shardwright.sharding.versions import DatabaseVersion
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import BackendError, CommandError

if TYPE_CHECKING:
    from shardwright.shardd.context.shard_context import ShardContext

IDENTITY = {"namespace": "d.c", "operationType": "rehearsed"}
LEFT_BEHIND = {"_id": IDENTITY, "phase": "begun", "recoveredFromDisk": True}
VERSION = DatabaseVersion(uuid4(), Timestamp(1, 1), 1)
UNREACHABLE = CommandError(ErrorCode.HostUnreachable, "no answer")


class NoMigrations:
    """A shard without migrations."""

    @property
    def databases(self) -> DatabaseMoves:
        """There are none."""
        raise NotImplementedError

    async def end_all(self, namespace: str, reason: str) -> None:
        """Do nothing: there are none."""


class FakeShard:
    """A shard whose mongod stores only the documents of coordinators."""

    def __init__(self, *documents: dict[str, Any]) -> None:
        self.mongod = self.refresher = self
        self.entry: DatabaseEntry | None = DatabaseEntry("d", "this", VERSION)
        self.ddl_locks = DDLLocks()
        self.shown_locks = ShownLocks(self._write_locks)
        self.fail_points = FailPoints({HANG_IN_DDL_COORDINATOR})
        self.documents = list(documents)
        self.failures: list[Exception] = []

    async def _write_locks(self, collection: str, statements: object) -> None:
        raise NotImplementedError  # nobody looks

    def database(self, name: str) -> DatabaseState:
        """The database as it is in the catalog."""
        state = DatabaseState(name)
        state.learn(self.entry)
        return state

    async def refresh_database(self, _state: DatabaseState) -> None:
        """Do nothing: this is the catalog's entry."""

    def require_identity(self) -> ShardIdentity:
        """This shard."""
        return ShardIdentity("this", ObjectId(), "config/localhost:1")

    async def command(self, _db: str, _command: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "cursor": {"id": 0, "ns": "config.system.sharding_ddl_coordinators", "firstBatch": list(self.documents)}
        }

    async def write(self, _db: str, command: Mapping[str, Any]) -> dict[str, Any]:
        if self.failures:
            raise self.failures.pop(0)
        write = (command.get("updates") or command["deletes"])[0]
        self.documents = [each for each in self.documents if each["_id"] != write["q"]["_id"]]
        if "u" in write:
            self.documents.append(write["u"])
        return {"ok": 1.0}


class Rehearsed(Coordinator):
    """Fails with the test's errors one after the other, and then succeeds."""

    operation_type: ClassVar[str] = "rehearsed"
    failures: ClassVar[list[Exception]] = []
    is_committed: ClassVar[bool] = False
    times: ClassVar[list[float]] = []

    async def run(self) -> dict[str, Any]:
        self.times.append(trio.current_time())
        await self.enter_phase("begun")
        if self.failures:
            self.must_finish = self.must_finish or self.is_committed
            raise self.failures.pop(0)
        return {"done": True}


@pytest.fixture(autouse=True)
def rehearsed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Register the kind of coordinator, with no attempts so far."""
    monkeypatch.setattr("shardwright.shardd.ddl.service.COORDINATORS", {**COORDINATORS, "rehearsed": Rehearsed})
    monkeypatch.setattr(Rehearsed, "times", [])
    monkeypatch.setattr(Rehearsed, "is_committed", False)


def fail_with(monkeypatch: pytest.MonkeyPatch, *failures: Exception, is_committed: bool = False) -> None:
    monkeypatch.setattr(Rehearsed, "failures", list(failures))
    monkeypatch.setattr(Rehearsed, "is_committed", is_committed)


def in_term(shard: FakeShard, work: Callable[[CoordinatorService], Awaitable[None]]) -> None:
    """Begin a term, run the work, end the term; waits take no time."""

    async def main() -> None:
        service = CoordinatorService(cast("ShardContext", shard), NoMigrations())
        async with trio.open_nursery() as nursery:
            await service.begin_term(1, nursery)
            await work(service)
            nursery.cancel_scope.cancel()
        service.end_term()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


def rehearse(shard: FakeShard) -> dict[str, Any]:
    """Run a coordinator as for a request."""
    ends: list[dict[str, Any] | CommandError] = []

    async def work(service: CoordinatorService) -> None:
        try:
            ends.append(await service.run(Rehearsed, Namespace("d", "c"), {}, received=VERSION))
        except CommandError as error:
            ends.append(error)

    in_term(shard, work)
    if isinstance(ends[0], CommandError):
        raise ends[0]
    return ends[0]


@pytest.mark.parametrize(
    ("failure", "code"),
    [
        (ValueError("a fault of the program"), ErrorCode.InternalError),
        (CommandError(ErrorCode.BadValue, "refused"), ErrorCode.BadValue),
        (BackendError("m:1", "no answer", sent=True), ErrorCode.HostUnreachable),
    ],
    ids=["internal", "refused", "network"],
)
def test_an_error_before_the_point_of_no_return_ends_the_change(
    monkeypatch: pytest.MonkeyPatch, failure: Exception, code: int
) -> None:
    fail_with(monkeypatch, failure)
    shard = FakeShard()
    with pytest.raises(CommandError) as caught:
        rehearse(shard)
    assert caught.value.code == code
    assert shard.documents == []
    assert len(Rehearsed.times) == 1


@pytest.mark.parametrize("failure", [ValueError("a fault of the program"), UNREACHABLE], ids=["internal", "network"])
def test_a_change_past_the_point_of_no_return_is_retried_until_it_is_done(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, failure: Exception
) -> None:
    fail_with(monkeypatch, *[failure] * 8, is_committed=True)
    shard = FakeShard()
    with caplog.at_level(logging.WARNING):
        assert rehearse(shard) == {"done": True}
    assert shard.documents == []
    pauses = [later - earlier for earlier, later in zip(Rehearsed.times, Rehearsed.times[1:], strict=False)]
    for pause, longest in zip(pauses, [RETRY_SECONDS, RETRY_SECONDS * 2, RETRY_SECONDS * 4], strict=False):
        assert longest / 2 <= pause <= longest
    assert RETRY_SECONDS_MAX / 2 <= pauses[-1] <= RETRY_SECONDS_MAX
    told = [each for each in caplog.records if each.message == "Retrying a DDL operation"]
    assert len(told) == 8


def test_a_phase_whose_document_was_not_saved_is_saved_before_the_next_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a new primary would continue with the phase before it."""

    class InTwoPhases(Coordinator):
        operation_type: ClassVar[str] = "rehearsed"
        phases_seen: ClassVar[list[list[str]]] = []

        async def run(self) -> dict[str, Any]:
            if self.phase is None:
                await self.enter_phase("begun")
                self.must_finish = True
                shard.failures.append(CommandError(ErrorCode.WriteConcernFailed, "waiting for replication timed out"))
                await self.enter_phase("decided")
            self.phases_seen.append([each["phase"] for each in shard.documents])
            return {"done": True}

    shard = FakeShard()

    async def work(service: CoordinatorService) -> None:
        assert await service.run(InTwoPhases, Namespace("d", "c"), {}, received=VERSION) == {"done": True}

    in_term(shard, work)
    assert InTwoPhases.phases_seen == [["decided"]]
    assert shard.documents == []


def test_the_end_of_the_term_ends_the_attempts_and_leaves_the_document(monkeypatch: pytest.MonkeyPatch) -> None:
    fail_with(monkeypatch, *[UNREACHABLE] * 1_000)
    shard = FakeShard(LEFT_BEHIND)

    async def work(_service: CoordinatorService) -> None:
        await trio.sleep(60)

    in_term(shard, work)
    assert 1 < len(Rehearsed.times) < 20
    assert [each["_id"] for each in shard.documents] == [IDENTITY]


@pytest.mark.parametrize(
    "unknown",
    [
        {"_id": {"namespace": "d.x", "operationType": "ofALaterVersion"}, "phase": "begun"},
        {"_id": {"namespace": "d.x", "operationType": "rehearsed"}},
        {"_id": "of another shape"},
    ],
    ids=["kind", "phase", "shape"],
)
def test_a_document_of_an_unknown_kind_is_logged_and_skipped(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, unknown: dict[str, Any]
) -> None:
    fail_with(monkeypatch)
    shard = FakeShard(unknown, LEFT_BEHIND)

    async def work(service: CoordinatorService) -> None:
        await service.restore_sections(1)
        await service.run(Rehearsed, Namespace("d", "c"), {}, received=VERSION)

    in_term(shard, work)
    assert shard.documents == [unknown]
    told = [each for each in caplog.records if "unknown kind" in each.message]
    assert len(told) == 1
    assert told[0].levelno == logging.ERROR


@pytest.mark.parametrize(
    ("entry", "wanted"),
    [
        (None, None),
        (DatabaseEntry("d", "other", replace(VERSION, last_mod=2)), 2),
        (DatabaseEntry("d", "this", DatabaseVersion(uuid4(), Timestamp(2, 1), 1)), 1),
    ],
    ids=["dropped", "moved", "created again"],
)
def test_a_change_does_not_begin_if_its_database_was_changed_while_it_waited(
    monkeypatch: pytest.MonkeyPatch, entry: DatabaseEntry | None, wanted: int | None
) -> None:
    fail_with(monkeypatch)
    shard = FakeShard()
    shard.entry = entry
    with pytest.raises(CommandError) as caught:
        rehearse(shard)
    assert caught.value.code == ErrorCode.StaleDbVersion
    assert caught.value.extra["vReceived"] == VERSION.to_document()
    assert caught.value.extra.get("vWanted", {}).get("lastMod") == wanted
    assert Rehearsed.times == []
