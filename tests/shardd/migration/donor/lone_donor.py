"""A donor without servers: mongod and recipient are simulated, and time passes when all tasks are waiting."""

from collections.abc import Awaitable, Callable, Mapping
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast
from uuid import uuid4

import trio
from bson import Int64, ObjectId, Timestamp
from trio.testing import MockClock

from shardwright.daemon.fail_points import FailPoints
from shardwright.shardd.context.fail_point_names import FAIL_POINT_NAMES
from shardwright.shardd.metadata.namespace_state import NamespaceState
from shardwright.shardd.migration.active_migrations import (
    ActiveDonorMigration,
    MigrationCoordinatorDocument,
    MigrationParameters,
)
from shardwright.shardd.migration.donor.donor_state import MigrationAttempts, RecipientLink, RecipientStatus, Steps
from shardwright.shardd.migration.donor.migration import DonorMigration, Outcome
from shardwright.shardd.migration.donor.move_range import MoveRangeRequest
from shardwright.shardd.orphans.range_deletion_tasks import KeyRange
from shardwright.sharding.chunks import ChunkRange
from shardwright.sharding.namespace import Namespace
from shardwright.sharding.shard_key import ShardKeyPattern
from shardwright.sharding.versions import ChunkVersion
from shardwright.wire.rawbson import encode_document

if TYPE_CHECKING:
    from shardwright.shardd.context.shard_context import ShardContext
    from shardwright.shardd.migration.donor.move_range import MovePlan

NAMESPACE = Namespace.parse("db.c")
PATTERN = ShardKeyPattern.from_mapping({"a": 1})
LOW, HIGH = encode_document({"a": 0}), encode_document({"a": 10})
ESTIMATE = 1000


class Source:
    """The source of a clone that has been pulled completely, without further changes."""

    documents_cloned = ESTIMATE
    bytes_cloned = 100 * ESTIMATE
    queued_ids = 3
    queued_bytes = 300
    is_clone_exhausted = True

    async def start(self) -> None:
        """Do nothing: there is nothing to open."""

    async def run(self) -> None:
        """Do nothing: there is nothing to follow."""

    async def wait_followed(self, time: Timestamp) -> None:
        """Return at once: nothing is written."""

    def close(self) -> None:
        """Do nothing: there is nothing to close."""


class Recipient:
    """A recipient that is steady from the beginning and commits at once, unless a subclass behaves worse.

    Attributes:
        starts: number of received start commands.
    """

    def __init__(self) -> None:
        self.starts = 0

    async def start(self, attempts: MigrationAttempts) -> dict[str, Any]:
        """``_recvChunkStart``."""
        self.starts += 1
        assert len(attempts.attempts) == self.starts
        return {"started": True}

    async def status(self, session_id: str) -> RecipientStatus:
        """``_recvChunkStatus``."""
        return self.in_state("steady", ESTIMATE)

    async def commit(self, session_id: str) -> RecipientStatus:
        """``_recvChunkCommit``."""
        return self.in_state("enteredCriticalSection", ESTIMATE)

    @staticmethod
    def in_state(state: str, cloned: int) -> RecipientStatus:
        """A reply about the present attempt."""
        counts = {"cloned": Int64(cloned), "clonedBytes": Int64(100 * cloned), "catchup": Int64(0), "steady": Int64(0)}
        return RecipientStatus(state, counts, None)


class Mongod:
    """A mongod that records writes.

    Attributes:
        written: the documents that were last saved, by collection.
    """

    def __init__(self) -> None:
        self.written: dict[str, Mapping[str, Any]] = {}

    async def operation_time(self) -> Timestamp:
        """Return the time of the last write."""
        return Timestamp(1, 1)

    async def write(self, db: str, command: Mapping[str, Any]) -> dict[str, Any]:
        """Save a document."""
        [update] = command["updates"]
        self.written[command["update"]] = update["u"]
        return {"n": 1}


class LoneDonor:
    """One migration.

    Attributes:
        mongod: the donor's mongod.
        state: the state of the collection on the donor.
        outcome: the outcome of the migration.
        seconds: its duration.
    """

    def __init__(self, recipient: Recipient) -> None:
        self.mongod = Mongod()
        self.recipient = recipient
        self.state = NamespaceState(str(NAMESPACE), "sh0")
        self.outcome = Outcome()
        self.seconds = 0.0

    def run(self, beside: Callable[[], Awaitable[None]] | None = None) -> None:
        """Run the migration to its end, and ``beside`` concurrently with it."""

        async def main() -> None:
            async with trio.open_nursery() as nursery:
                if beside is not None:
                    nursery.start_soon(beside)
                migration = self._make(nursery)
                began = trio.current_time()
                self.outcome = await migration.run()
                self.seconds = trio.current_time() - began

        trio.run(main, clock=MockClock(autojump_threshold=0))

    def _make(self, nursery: trio.Nursery) -> DonorMigration:
        async def count_critical_section(namespace: str) -> None:
            """Do nothing: there are no secondaries."""

        shard = cast(
            "ShardContext",
            SimpleNamespace(
                mongod=self.mongod,
                fail_points=FailPoints(FAIL_POINT_NAMES),
                store=SimpleNamespace(count_critical_section=count_critical_section),
                namespace=lambda namespace: self.state,
            ),
        )
        request = MoveRangeRequest(NAMESPACE, LOW, HIGH, "sh1", ObjectId())
        plan = SimpleNamespace(
            range=ChunkRange.of(PATTERN, LOW, HIGH),
            request=request,
            new_source=lambda shard, session, observe: Source(),
            new_history=lambda shard: SimpleNamespace(observe=None, close=trio.lowlevel.checkpoint),
        )
        coordinator = MigrationCoordinatorDocument(
            id=uuid4(),
            session_id=f"sh0_sh1_{ObjectId()}",
            lsid={},
            txn_number=0,
            namespace=str(NAMESPACE),
            collection_uuid=uuid4(),
            donor="sh0",
            recipient="sh1",
            range=KeyRange(LOW, HIGH),
            chunk_version=ChunkVersion(1, 0, request.epoch, Timestamp(1, 1)),
        )
        steps = Steps(shard, ActiveDonorMigration(request.key), request)
        steps.set_bounds(LOW, HIGH)
        attempts = MigrationAttempts(coordinator.id, request)
        migration = DonorMigration(
            shard,
            MigrationParameters(),
            cast("MovePlan", plan),
            coordinator,
            attempts,
            steps,
            nursery,
            trio.lowlevel.checkpoint,
        )
        migration.documents_estimated = ESTIMATE
        migration.recipient = cast("RecipientLink", self.recipient)
        return migration
