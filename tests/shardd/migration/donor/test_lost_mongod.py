"""A donor whose mongod does not answer, or which fails itself, while a migration ends; all servers are simulated."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from itertools import pairwise
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast
from uuid import uuid4

import pytest
import trio
from bson import Int64, MaxKey, MinKey, ObjectId, Timestamp
from trio.testing import MockClock

from shardwright.daemon.fail_points import FailPoints
from shardwright.daemon.metrics import Metrics
from shardwright.shardd.context.ddl_locks import DDLLocks
from shardwright.shardd.context.fail_point_names import FAIL_POINT_NAMES
from shardwright.shardd.metadata.namespace_state import NamespaceState
from shardwright.shardd.migration.active_migrations import (
    COMMITTED,
    MIGRATION_COORDINATORS,
    ActiveMigrations,
    MigrationCoordinatorDocument,
    MigrationParameters,
)
from shardwright.shardd.migration.donor.donor_service import DonorService
from shardwright.shardd.orphans.range_deletion_tasks import KeyRange
from shardwright.sharding.chunks import ChunkPlacement
from shardwright.sharding.namespace import Namespace
from shardwright.sharding.routing_table import RoutingTable, ShardedCollection
from shardwright.sharding.shard_key import ShardKeyPattern
from shardwright.sharding.time_series import TimeSeriesFields
from shardwright.sharding.versions import ChunkVersion
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import BackendError, CommandError, check_writes
from shardwright.wire.rawbson import encode_document

if TYPE_CHECKING:
    from shardwright.shardd.context.shard_context import ShardContext
    from shardwright.shardd.range_deleter.range_deleter_service import RangeDeletions

NAMESPACE = Namespace.parse("db.system.buckets.series")
COLLECTION = ShardedCollection(
    NAMESPACE,
    uuid4(),
    ObjectId(),
    Timestamp(1, 1),
    ShardKeyPattern.from_mapping({"meta": 1, "control.min.at": 1}),
    time_series=TimeSeriesFields("at", "sensor"),
)
FIRST, LOW, HIGH, LAST = (
    encode_document({"meta": meta, "control.min.at": at})
    for meta, at in [
        (MinKey(), MinKey()),
        (1, datetime(2024, 1, 1, tzinfo=UTC)),
        (1, datetime(2024, 1, 2, tzinfo=UTC)),
        (MaxKey(), MaxKey()),
    ]
)


class World:
    """A donor that has taken over a committed migration, with its mongod and the other servers.

    Attributes:
        state: the donor's state of the collection.
        coordinator: the persisted migration.
        failures: the number of failures of reads (``find``), of updates of buckets (``update``) or of refreshes
            (``refresh``) to come.
        write_errors: the number of updates of buckets to come that fail without failing the command.
        are_closed: whether the buckets are closed.
        forgotten: set when the migration is completed and no longer persisted.
        read_outcome: called before the placement is read.
        internal_errors: the number of internal errors to come while the range deletion is made ready.
    """

    def __init__(self) -> None:
        self.state = NamespaceState(str(NAMESPACE), "sh0")
        self.coordinator = MigrationCoordinatorDocument(
            id=uuid4(),
            session_id=f"sh0_sh1_{ObjectId()}",
            lsid={},
            txn_number=Int64(0),
            namespace=str(NAMESPACE),
            collection_uuid=COLLECTION.uuid,
            donor="sh0",
            recipient="sh1",
            range=KeyRange(LOW, HIGH),
            chunk_version=ChunkVersion(1, 0, COLLECTION.epoch, COLLECTION.timestamp),
        )
        self.failures = {"find": 0, "update": 0, "refresh": 0}
        self.write_errors = 0
        self.are_closed = False
        self.forgotten = trio.Event()
        self.read_outcome: Callable[[], object] = lambda: None
        self.internal_errors = 0

    async def command(self, db: str, command: Mapping[str, Any]) -> dict[str, Any]:
        """Run a command on the mongod: a read of persisted migrations, or the update that closes buckets."""
        await trio.lowlevel.checkpoint()
        name = next(iter(command))
        if self.failures[name]:
            self.failures[name] -= 1
            raise BackendError("mongod", "the connection was lost", sent=True)
        if name == "update":
            return self._close_buckets()
        found = [self.coordinator.to_document()] if command[name] == MIGRATION_COORDINATORS else []
        return {"cursor": {"id": Int64(0), "ns": f"{db}.{command[name]}", "firstBatch": found}}

    def _close_buckets(self) -> dict[str, Any]:
        assert self.state.critical_section is not None, "buckets may get measurements before they are closed"
        if self.write_errors:
            self.write_errors -= 1
            return {"n": 0, "writeErrors": [{"index": 0, "code": ErrorCode.MaxTimeMSExpired, "errmsg": "too slow"}]}
        self.are_closed = True
        return {"n": 1}

    async def write(self, db: str, command: Mapping[str, Any]) -> dict[str, Any]:
        """Write on the mongod: into a collection of ``config``, or to buckets."""
        if "update" in command and db != "config":
            reply = await self.command(db, command)
            check_writes(reply)
            return reply
        await trio.lowlevel.checkpoint()
        if command.get("delete") == MIGRATION_COORDINATORS:
            self.forgotten.set()
        elif command.get("update") == MIGRATION_COORDINATORS:
            self.coordinator = replace(self.coordinator, decision=command["updates"][0]["u"]["$set"]["decision"])
        return {"n": 1}

    async def read(self, read: object) -> RoutingTable:
        """Read the placement from the config servers."""
        await trio.lowlevel.checkpoint()
        self.read_outcome()
        shards = ("sh0", "sh1", "sh0")
        return RoutingTable.build(
            COLLECTION,
            [
                ChunkPlacement(low, high, shard, (2 << 32) + number, ())
                for number, (shard, (low, high)) in enumerate(
                    zip(shards, pairwise((FIRST, LOW, HIGH, LAST)), strict=True)
                )
            ],
        )

    async def refresh_collection(self, state: NamespaceState) -> None:
        """Refresh the placement."""
        if self.failures["refresh"]:
            self.failures["refresh"] -= 1
            raise CommandError(ErrorCode.HostUnreachable, "no config server")
        state.learn(await self.read(None))

    async def mark_ready(self, _migration_id: object, *, when: str) -> None:
        """Make the range deletion ready."""
        await trio.lowlevel.checkpoint()
        if self.internal_errors:
            self.internal_errors -= 1
            raise ValueError(when)

    async def take_over(self, nursery: trio.Nursery) -> ActiveMigrations:
        """Take the migration over; return the active migrations."""
        active = ActiveMigrations()
        done = _returning(None)
        context = SimpleNamespace(
            namespace=lambda name: self.state,
            mongod=self,
            metrics=Metrics("shardd", ()),
            ddl_locks=DDLLocks(),
            fail_points=FailPoints(FAIL_POINT_NAMES),
            refresher=self,
            catalog=_returning(self),
            config_times=SimpleNamespace(wait_durable=done, gossip=dict, observe_reply=lambda reply: None),
            shard_client=_returning(SimpleNamespace(command=_returning({}))),
        )
        service = DonorService(
            cast("ShardContext", context),
            cast("RangeDeletions", self),
            active,
            MigrationParameters(),
            trio.lowlevel.checkpoint,
        )
        await service.recover([(self.coordinator, None)], nursery)
        return active


def _returning(value: object) -> Callable[..., Awaitable[Any]]:
    async def run(*arguments: object, **more: object) -> object:
        await trio.lowlevel.checkpoint()
        return value

    return run


@pytest.fixture
def world() -> World:
    return World()


@pytest.mark.parametrize("failure", ["update", "refresh", "write error"])
async def test_operations_wait_until_buckets_are_closed(world: World, failure: str, autojump_clock: MockClock) -> None:
    """Otherwise mongod might add measurements that this shard owns to a bucket that it has given away."""
    if failure == "write error":
        world.write_errors = 3
    else:
        world.failures[failure] = 3
    async with trio.open_nursery() as nursery:
        migration = (await world.take_over(nursery)).donor
        assert migration is not None
        with trio.fail_after(60):
            await migration.ended.wait()
            await world.forgotten.wait()
    assert world.write_errors == 0
    assert world.failures == {"find": 0, "update": 0, "refresh": 0}
    assert world.are_closed
    assert migration.error is None
    assert world.state.critical_section is None


async def test_a_decided_migration_is_completed_after_internal_errors(world: World, autojump_clock: MockClock) -> None:
    """Otherwise operations would wait on the recipient until the donor's next term."""
    world.internal_errors = 3
    async with trio.open_nursery() as nursery:
        migration = (await world.take_over(nursery)).donor
        assert migration is not None
        with trio.fail_after(60):
            await migration.ended.wait()
            assert isinstance(migration.error, CommandError)
            assert migration.error.code == ErrorCode.InternalError
            await world.forgotten.wait()
    assert world.internal_errors == 0
    assert world.coordinator.decision == COMMITTED


async def test_migrations_cannot_be_read_after_an_internal_error(world: World, autojump_clock: MockClock) -> None:
    """Operations wait until they can be read, and the migration is completed then."""

    def fail() -> None:
        world.read_outcome = lambda: None
        raise ExceptionGroup("internal", [ValueError()])

    world.read_outcome = fail
    world.failures["find"] = 3
    async with trio.open_nursery() as nursery:
        migration = (await world.take_over(nursery)).donor
        assert migration is not None
        with trio.fail_after(60):
            await migration.ended.wait()
            assert isinstance(migration.error, CommandError)
            assert migration.error.code == ErrorCode.InternalError
            assert world.state.critical_section is not None
            await world.forgotten.wait()
    assert world.failures["find"] == 0
    assert world.state.critical_section is None
