"""A donor's interpretation of its recipient's replies."""

from typing import TYPE_CHECKING, Any, cast
from uuid import uuid4

import pytest
from bson import ObjectId, Timestamp

from shardwright.shardd.migration.active_migrations import MigrationCoordinatorDocument
from shardwright.shardd.migration.donor.donor_state import RecipientLink, RecipientLostError, RecipientStatus
from shardwright.shardd.migration.donor.move_range import MovePlan, MoveRangeRequest
from shardwright.shardd.orphans.range_deletion_tasks import KeyRange
from shardwright.sharding.chunks import ChunkPlacement, ChunkRange
from shardwright.sharding.namespace import Namespace
from shardwright.sharding.routing_table import RoutingTable, ShardedCollection
from shardwright.sharding.shard_key import ShardKeyPattern
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.rawbson import encode_document

if TYPE_CHECKING:
    from shardwright.shardd.context.shard_context import ShardContext

NAMESPACE = Namespace.parse("db.c")
PATTERN = ShardKeyPattern.from_mapping({"b": 1, "_id": 1})
EPOCH = ObjectId()
SESSION = "sh0_sh1_000000000000000000000001"
LOW, HIGH = encode_document({"b": 1, "_id": 0}), encode_document({"b": 2, "_id": 0})

STEADY: dict[str, Any] = {
    "active": True,
    "sessionId": SESSION,
    "ns": "db.c",
    "fromShardId": "sh0",
    # Another numeric type, but the same range.
    "min": {"b": 1.0, "_id": 0},
    "max": {"b": 2, "_id": 0.0},
    "state": "steady",
    "counts": {"cloned": 3},
}


@pytest.fixture
def link() -> RecipientLink:
    """A link that only interprets replies."""
    collection = ShardedCollection(NAMESPACE, uuid4(), EPOCH, Timestamp(1, 1), PATTERN)
    everything = ChunkPlacement(PATTERN.global_min(), PATTERN.global_max(), "sh0", 1 << 32, ())
    table = RoutingTable.build(collection, [everything])
    plan = MovePlan(
        MoveRangeRequest(NAMESPACE, LOW, HIGH, "sh1", EPOCH),
        table,
        table.chunk_for_key(PATTERN.key_bytes(LOW)),
        ChunkRange.of(PATTERN, LOW, HIGH),
    )
    coordinator = MigrationCoordinatorDocument(
        id=uuid4(),
        session_id=SESSION,
        lsid={},
        txn_number=0,
        namespace="db.c",
        collection_uuid=collection.uuid,
        donor="sh0",
        recipient="sh1",
        range=KeyRange(LOW, HIGH),
        chunk_version=plan.chunk_version,
    )
    return RecipientLink(cast("ShardContext", None), coordinator, plan)


def understand(link: RecipientLink, **changes: object) -> RecipientStatus:
    return link.interpret({**STEADY, **changes}, SESSION)


def test_a_recipient_that_is_steady(link: RecipientLink) -> None:
    status = understand(link)
    assert (status.state, status.counts) == ("steady", {"cloned": 3})


@pytest.mark.parametrize("state", ["fail", "abort"])
def test_a_recipient_that_has_failed(link: RecipientLink, state: str) -> None:
    with pytest.raises(CommandError) as failure:
        understand(link, state=state, errmsg="migrate failed: DuplicateKey: no")
    assert failure.value.code == ErrorCode.OperationFailed
    assert failure.value.message == "Data transfer error: migrate failed: DuplicateKey: no"


def test_a_recipient_that_was_restarted(link: RecipientLink) -> None:
    idle = {"active": False, "ns": "", "fromShardId": "", "min": {}, "max": {}, "state": "ready"}
    with pytest.raises(RecipientLostError):
        link.interpret(idle, SESSION)


@pytest.mark.parametrize(
    "change",
    [
        {"sessionId": "sh0_sh1_000000000000000000000002"},
        {"ns": "db.other"},
        {"fromShardId": "sh2"},
        {"min": {"b": 0, "_id": 0}},
        {"max": {"b": 3, "_id": 0}},
    ],
)
def test_a_recipient_busy_with_another_migration(link: RecipientLink, change: dict[str, Any]) -> None:
    with pytest.raises(CommandError) as failure:
        understand(link, **change)
    assert failure.value.code == ErrorCode.OperationIncomplete


def test_a_failure_of_another_migration_is_not_a_failure_of_this_one(link: RecipientLink) -> None:
    with pytest.raises(RecipientLostError):
        understand(link, active=False, state="fail", ns="db.other")
