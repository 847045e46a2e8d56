"""Refusals of a change whose earlier attempt may have made part of it, and of one that has not begun."""

from collections.abc import AsyncIterator, Collection, Iterable, Mapping
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
import trio
from bson.binary import Binary
from bson.objectid import ObjectId

from shardwright.shardd.ddl import coordinator, modify_collection, service, shard_key_changes
from shardwright.shardd.ddl.coordinator import Coordinator
from shardwright.shardd.ddl.modify_collection import ModifyCollection
from shardwright.shardd.ddl.service import CoordinatorService
from shardwright.shardd.ddl.shard_key_changes import RefineCollectionShardKey, ReshardCollection
from shardwright.sharding.namespace import Namespace
from shardwright.sharding.shard_key import ShardKeyPattern
from shardwright.sharding.time_series import TimeSeriesFields
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from tests.shardd.ddl.test_coordinator_ends import VERSION, FakeShard, in_term

if TYPE_CHECKING:
    from collections.abc import Iterator

CHANGE = "_shardsvrCollModParticipant"
FREEZE = "_configsvrSetAllowMigrations"
REFINE = "_configsvrRefineCollectionShardKey"
BLOCK = "_shardsvrParticipantBlock"
SHARDS = ("b", "c", "this")
UUID_OF_COLLECTION = uuid4()

LOST = CommandError(ErrorCode.HostUnreachable, "no answer")
FOR_NOW = CommandError(ErrorCode.BackgroundOperationInProgressForNamespace, "an index build is currently running")
INVALID = CommandError(ErrorCode.BadValue, "unknown operator")
REFUSED = CommandError(ErrorCode.Unauthorized, "refused")
DROPPED = CommandError(ErrorCode.IndexNotFound, "cannot find index")


class FakeCluster(FakeShard):
    """Three owners of a sharded collection, and the config servers, which fail as the test says.

    Attributes:
        outcomes: outcomes of the first commands of a name to a receiver, which is ``config`` or a shard. None
            is a success.
        always: the failures of all commands of a name to a receiver.
        received: the names and receivers of successful commands.
        numbers: the transaction numbers of all commands to the config servers; None without one.
        over: set once no coordinator's document is left.
    """

    def __init__(self, *documents: dict[str, Any]) -> None:
        super().__init__(*documents)
        self.outcomes: dict[tuple[str, str], list[CommandError | None]] = {}
        self.always: dict[tuple[str, str], CommandError] = {}
        self.received: list[tuple[str, str]] = []
        self.numbers: list[int | None] = []
        self.may_migrate = True
        self.key = {"a": 1}
        self.time_series: TimeSeriesFields | None = None
        self.over = trio.Event()
        self.index_creations = self

    @asynccontextmanager
    async def kept_out(self, _names: Iterable[str], *, must_enter: bool) -> AsyncIterator[None]:
        """No index is being created."""
        yield

    async def write(self, _db: str, command: Mapping[str, Any]) -> dict[str, Any]:
        """Write a coordinator's document."""
        reply = await super().write(_db, command)
        if not self.documents:
            self.over.set()
        return reply

    async def catalog(self) -> "FakeCluster":
        """The config servers."""
        await trio.lowlevel.checkpoint()
        return self

    async def shards(self) -> dict[str, Any]:
        """The shards by their ids."""
        return {each: SimpleNamespace(host=each) for each in SHARDS}

    async def read(self, rounds: "Iterator[Any]") -> Any:  # noqa: ANN401 - the reader decides
        """The routing table."""
        rounds.close()  # type: ignore[attr-defined]
        collection = SimpleNamespace(uuid=UUID_OF_COLLECTION, time_series=self.time_series, epoch=ObjectId())
        collection.key_pattern, collection.unique = ShardKeyPattern.from_mapping(self.key), False
        return SimpleNamespace(shards=set(SHARDS), collection=collection, key_pattern=collection.key_pattern)

    async def commit(self, command: Mapping[str, Any], _db: str = "admin") -> dict[str, Any]:
        """Execute a command of the config servers."""
        name = next(iter(command))
        self.numbers.append(command.get("txnNumber"))
        error = self._next_failure(name, "config")
        if error is None or error is LOST:
            if name == FREEZE:
                self.may_migrate = command["allowMigrations"]
            elif name == REFINE:
                self.key = {"a": 1, "b": 1}
        if error is not None:
            raise error
        return {}

    async def send_to_shards(
        self, _context: object, shard_ids: Collection[str], _db: str, command: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Send a command to shards."""
        await trio.lowlevel.checkpoint()
        errors = [self._next_failure(next(iter(command)), each) for each in sorted(shard_ids)]
        for error in filter(None, errors):
            raise error
        result = {"ok": 1.0}
        return {each: {"result": result, "cursor": {"firstBatch": []}} for each in shard_ids}

    def changed(self) -> set[str]:
        """The shards that have made the change."""
        return {receiver for name, receiver in self.received if name == CHANGE}

    def _next_failure(self, name: str, receiver: str) -> CommandError | None:
        planned = self.outcomes.get((name, receiver))
        error = planned.pop(0) if planned else self.always.get((name, receiver))
        if error is None:
            self.received.append((name, receiver))
        return error


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> FakeCluster:
    """Send the coordinators' commands to the fake cluster."""
    cluster = FakeCluster()

    async def not_blocked(_service: object) -> None:
        await trio.lowlevel.checkpoint()

    async def nothing(*_: object, **_options: object) -> None:
        await trio.lowlevel.checkpoint()

    monkeypatch.setattr(service.CoordinatorService, "_check_not_blocked", not_blocked)
    monkeypatch.setattr(modify_collection, "send_to_shards", cluster.send_to_shards)
    monkeypatch.setattr(shard_key_changes.RefineCollectionShardKey, "_check_index", nothing)
    monkeypatch.setattr(shard_key_changes, "check_expected_uuid", nothing)
    return cluster


COLL_MOD: dict[str, Any] = {"collModRequest": {"validator": {"b": 1}}}


def run(
    cluster: FakeCluster, kind: type[Coordinator] = ModifyCollection, arguments: Mapping[str, Any] = COLL_MOD
) -> dict[str, Any] | CommandError:
    """Make the change for a client, which waits for an hour at most; return the reply or the error."""
    ends: list[dict[str, Any] | CommandError] = []

    async def work(changes: CoordinatorService) -> None:
        with trio.fail_after(3_600):
            try:
                ends.append(await changes.run(kind, Namespace("d", "c"), arguments, received=VERSION))
            except CommandError as error:
                ends.append(error)

    in_term(cluster, work)
    assert cluster.documents == []
    assert cluster.may_migrate
    return ends[0]


def resume(cluster: FakeCluster, kind: type[Coordinator], phase: str, arguments: Mapping[str, Any]) -> None:
    """Resume the change as a new primary, until its document is removed."""
    identity = {"namespace": "d.c", "operationType": kind.operation_type}
    cluster.may_migrate = False
    session = coordinator.new_session()
    cluster.documents = [{"_id": identity, "phase": phase, "session": session, **arguments}]

    async def work(_changes: CoordinatorService) -> None:
        with trio.fail_after(3_600):
            await cluster.over.wait()

    in_term(cluster, work)
    assert cluster.may_migrate


@pytest.mark.parametrize(
    ("name", "receiver", "refusal"),
    [(CHANGE, "this", FOR_NOW), (CHANGE, "this", REFUSED), (CHANGE, "b", REFUSED), (FREEZE, "config", REFUSED)],
)
def test_a_change_that_some_shards_have_made_is_finished(
    cluster: FakeCluster, name: str, receiver: str, refusal: CommandError
) -> None:
    cluster.outcomes = {(CHANGE, "c"): [LOST], (name, receiver): [None, refusal]}
    assert isinstance(run(cluster), dict)
    assert cluster.outcomes == {(CHANGE, "c"): [], (name, receiver): []}
    assert cluster.changed() == set(SHARDS)


@pytest.mark.parametrize("lost", [[], [LOST], [LOST] * 3])
def test_a_change_that_this_shard_refuses_is_made_nowhere(cluster: FakeCluster, lost: list[CommandError]) -> None:
    cluster.outcomes = {(CHANGE, "this"): [*lost]}
    cluster.always = {(CHANGE, "this"): INVALID}
    assert run(cluster) is INVALID
    assert cluster.changed() == set()


def test_a_refusal_for_now_ends_a_change_that_has_not_begun(cluster: FakeCluster) -> None:
    cluster.always = {(CHANGE, "this"): FOR_NOW}
    assert run(cluster) is FOR_NOW


def test_a_refusal_stays_final_if_migrations_cannot_be_allowed_at_once(cluster: FakeCluster) -> None:
    cluster.outcomes = {(FREEZE, "config"): [None, LOST]}
    cluster.always = {(CHANGE, "this"): INVALID}
    assert run(cluster) is INVALID


def test_a_change_of_an_index_ends_if_the_index_is_dropped(cluster: FakeCluster) -> None:
    cluster.outcomes = {(CHANGE, "c"): [LOST]}
    cluster.always = {(CHANGE, each): DROPPED for each in SHARDS}
    cluster.outcomes |= {(CHANGE, each): [None] for each in ("this", "b")}
    assert run(cluster) is DROPPED


@pytest.mark.parametrize("phase", [modify_collection.BLOCK_SHARDS, modify_collection.UPDATE_SHARDS])
def test_a_new_primary_ends_a_change_that_its_shard_refuses(cluster: FakeCluster, phase: str) -> None:
    cluster.always = {(CHANGE, "this"): INVALID}
    resume(cluster, ModifyCollection, phase, COLL_MOD)
    assert cluster.changed() == set()


@pytest.mark.parametrize("made", [{}, {modify_collection.CHANGED_HERE: True}])
@pytest.mark.parametrize(("name", "receiver"), [(CHANGE, "this"), (FREEZE, "config")])
def test_a_new_primary_finishes_a_change_that_some_shards_may_have_made(
    cluster: FakeCluster, made: dict[str, Any], name: str, receiver: str
) -> None:
    cluster.outcomes = {(name, receiver): [FOR_NOW, FOR_NOW]}
    resume(cluster, ModifyCollection, modify_collection.UPDATE_SHARDS, {**COLL_MOD, **made})
    assert cluster.changed() == set(SHARDS)


GRANULARITY: dict[str, Any] = {
    "collModRequest": {"timeseries": {"granularity": "minutes"}, "expireAfterSeconds": 5},
}


def time_series(cluster: FakeCluster) -> None:
    cluster.time_series = TimeSeriesFields.from_document({"timeField": "t", "granularity": "seconds"})


@pytest.mark.parametrize(
    ("name", "receiver", "outcomes"),
    [
        ("listCollections", "b", [None, REFUSED]),
        (BLOCK, "c", [None, REFUSED]),
        (FREEZE, "config", [None, REFUSED]),
        (CHANGE, "this", [FOR_NOW]),
    ],
)
def test_a_granularity_is_changed_once_this_shard_may_have_made_the_rest(
    cluster: FakeCluster, name: str, receiver: str, outcomes: list[CommandError | None]
) -> None:
    time_series(cluster)
    cluster.outcomes = {(name, receiver): outcomes}
    cluster.outcomes[CHANGE, "this"] = [LOST, *cluster.outcomes.get((CHANGE, "this"), [])]
    assert isinstance(run(cluster, arguments=GRANULARITY), dict)
    assert ("_configsvrCollMod", "config") in cluster.received
    assert None not in cluster.numbers
    assert len(cluster.numbers) == len(set(cluster.numbers))
    assert cluster.changed() == set(SHARDS)


@pytest.mark.parametrize(
    ("name", "receiver"), [("listCollections", "b"), (BLOCK, "c"), (FREEZE, "config"), (CHANGE, "this")]
)
@pytest.mark.parametrize("is_new_primary", [False, True])
def test_a_granularity_that_is_refused_at_first_is_changed_nowhere(
    cluster: FakeCluster, name: str, receiver: str, is_new_primary: bool
) -> None:
    time_series(cluster)
    cluster.outcomes = {(name, receiver): [REFUSED]}
    if is_new_primary:
        info = {"timeSeriesOptions": cluster.time_series.to_document(), "isSharded": True}  # type: ignore[union-attr]
        arguments = {**GRANULARITY, modify_collection.INFO: info}
        resume(cluster, ModifyCollection, modify_collection.BLOCK_SHARDS, arguments)
    else:
        assert run(cluster, arguments=GRANULARITY) is REFUSED
    assert cluster.changed() == set()


REFINEMENT: dict[str, Any] = {"newShardKey": {"a": 1, "b": 1}}


@pytest.mark.parametrize("name", [FREEZE, REFINE])
def test_a_committed_refinement_is_finished(cluster: FakeCluster, name: str) -> None:
    cluster.outcomes = {(REFINE, "config"): [LOST], (FREEZE, "config"): [None]}
    cluster.outcomes[name, "config"].append(REFUSED)
    assert run(cluster, RefineCollectionShardKey, REFINEMENT) == {}
    assert (REFINE, "config") in cluster.received


@pytest.mark.parametrize("is_new_primary", [False, True])
def test_a_refinement_that_the_config_servers_refuse_ends(cluster: FakeCluster, is_new_primary: bool) -> None:
    cluster.always = {(REFINE, "config"): REFUSED}
    if is_new_primary:
        begun = {"oldEpoch": ObjectId(), "refinedUUID": Binary.from_uuid(UUID_OF_COLLECTION)}
        resume(cluster, RefineCollectionShardKey, shard_key_changes.REFINE, {**REFINEMENT, **begun})
    else:
        assert run(cluster, RefineCollectionShardKey, REFINEMENT) is REFUSED
    assert cluster.key == {"a": 1}


def test_the_abort_of_a_resharding_ends_it_after_a_lost_reply_too(cluster: FakeCluster) -> None:
    cluster.outcomes = {("_configsvrReshardCollection", "config"): [LOST, REFUSED]}
    assert run(cluster, ReshardCollection, {"key": {"b": 1}}) is REFUSED
