"""``_shardsvrMoveRange``: its arguments, and the plan of a move.

The request is read as received, and as persisted for the next primary. The plan has the checks of a move, and the
documents that register a migration before it begins.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Final
from uuid import uuid4

from bson.binary import Binary
from bson.int64 import Int64
from bson.objectid import ObjectId

from shardwright.daemon.sidecar.mongod import LocalMongod
from shardwright.shardd.context.shard_context import ShardContext, refreshed_table
from shardwright.shardd.local_mongod import local_collections
from shardwright.shardd.migration.active_migrations import (
    DonorMigrationKey,
    MigrationCoordinatorDocument,
    new_session_id,
)
from shardwright.shardd.migration.donor.clone_source import CloneSource
from shardwright.shardd.orphans.range_deletion_tasks import CLEAN_DELAYED, CLEAN_NOW, KeyRange, RangeDeletionTask
from shardwright.shardd.session_history.donor_history import DonorHistory
from shardwright.shardd.session_history.oplog_history import HistoryReader
from shardwright.sharding.bson_text import document_text
from shardwright.sharding.chunks import ChunkRange
from shardwright.sharding.document_fields import optional, required
from shardwright.sharding.namespace import Namespace, full_namespace
from shardwright.sharding.routing_table import RoutedChunk, RoutingTable
from shardwright.sharding.versions import ChunkVersion
from shardwright.wire.arguments import Arguments
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError, missing_field
from shardwright.wire.rawbson import encode_document, raw_document
from shardwright.wire.request import Request

DO_NOT_FORCE_JUMBO: Final = 0
"""The ``forceJumbo`` of a move that is refused if the range is too big."""

_SLACK: Final = 2
"""Factor of MongoDB 6.0.5: a range is too big with more than twice as many documents as fit into the size limit.

The number of documents alone does not matter: it moves 260,000 of 22 bytes.
"""


@dataclass(frozen=True, slots=True)
class MoveRangeRequest:
    """A request to move a range to another shard.

    Attributes:
        min: lower bound, a shard key document; None to leave it to the donor.
        max: upper bound, a shard key document; None to leave it to the donor. At least one of the bounds is given.
        epoch: the collection's epoch on the config server.
        max_chunk_bytes: largest size of a range, in bytes; None for no limit.
        force_jumbo: `DO_NOT_FORCE_JUMBO`, or 1 (a user's request) or 2 (the balancer's) to move a bigger range as well.
        wait_for_delete: whether to reply only when the donor's documents have been deleted.
        secondary_throttle: whether the recipient waits for its secondaries after every batch of documents.
        write_concern: the write concern of that wait; empty for the recipient's default.
    """

    namespace: Namespace
    min: bytes | None
    max: bytes | None
    recipient: str
    epoch: ObjectId
    max_chunk_bytes: int | None = None
    force_jumbo: int = DO_NOT_FORCE_JUMBO
    wait_for_delete: bool = False
    secondary_throttle: bool = False
    write_concern: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def from_request(cls, request: Request) -> "MoveRangeRequest":
        """Read the arguments of a command, or raise 40414, TypeMismatch, InvalidNamespace or BadValue."""
        low, high = request.raw_object(b"min"), request.raw_object(b"max")
        if low is None and high is None:
            raise missing_field("_shardsvrMoveRange.min")
        epoch = Arguments.of(request).required_value(b"epoch")
        if not isinstance(epoch, ObjectId):
            raise CommandError(ErrorCode.TypeMismatch, "BSON field '_shardsvrMoveRange.epoch' is not an objectId")
        throttles = Arguments.of(request).boolean(b"secondaryThrottle", False)
        limit = request.get(b"maxChunkSizeBytes")
        return cls(
            namespace=full_namespace(request),
            min=low,
            max=high,
            recipient=Arguments.of(request).string(b"toShard"),
            epoch=epoch,
            max_chunk_bytes=int(limit) if isinstance(limit, int | float) and limit > 0 else None,
            force_jumbo=int(request.get(b"forceJumbo", DO_NOT_FORCE_JUMBO)),
            wait_for_delete=Arguments.of(request).boolean(b"waitForDelete", False),
            secondary_throttle=throttles,
            # As in MongoDB, the command's write concern applies to the recipient's writes only with secondaryThrottle.
            write_concern=dict(request.get(b"writeConcern") or {}) if throttles else {},
        )

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> "MoveRangeRequest":
        """Read the persisted form, or raise NoSuchKey or TypeMismatch."""
        low, high = optional(document, "min", Mapping), optional(document, "max", Mapping)
        return cls(
            namespace=Namespace.parse(required(document, "nss", str)),
            min=None if low is None else encode_document(low),
            max=None if high is None else encode_document(high),
            recipient=required(document, "toShard", str),
            epoch=required(document, "epoch", ObjectId),
            max_chunk_bytes=optional(document, "maxChunkSizeBytes", int),
            force_jumbo=required(document, "forceJumbo", int),
            wait_for_delete=required(document, "waitForDelete", bool),
            secondary_throttle=required(document, "secondaryThrottle", bool),
            write_concern=required(document, "writeConcern", Mapping),
        )

    def to_document(self) -> dict[str, Any]:
        """Return the persisted form."""
        document: dict[str, Any] = {"nss": str(self.namespace)}
        if self.min is not None:
            document["min"] = raw_document(self.min)
        if self.max is not None:
            document["max"] = raw_document(self.max)
        document |= {"toShard": self.recipient, "epoch": self.epoch}
        if self.max_chunk_bytes is not None:
            document["maxChunkSizeBytes"] = self.max_chunk_bytes
        return document | {
            "forceJumbo": self.force_jumbo,
            "waitForDelete": self.wait_for_delete,
            "secondaryThrottle": self.secondary_throttle,
            "writeConcern": dict(self.write_concern),
        }

    @property
    def key(self) -> DonorMigrationKey:
        """The identity of the migration among requests."""
        return DonorMigrationKey(str(self.namespace), self.min, self.max, self.recipient)


@dataclass(frozen=True, slots=True)
class MovePlan:
    """A move that has passed the checks.

    Attributes:
        table: the routing table that it was checked against.
        chunk: the chunk that contains the range.
    """

    request: MoveRangeRequest
    table: RoutingTable
    chunk: RoutedChunk
    range: ChunkRange

    @property
    def key_range(self) -> KeyRange:
        """The range in its persisted form."""
        return KeyRange(self.range.min, self.range.max)

    @property
    def chunk_version(self) -> ChunkVersion:
        """The version of the chunk."""
        return self.table.collection.version(self.chunk.version)

    def new_source(
        self, context: ShardContext, session_id: str, observe: Callable[[bytes], None] = lambda entry: None
    ) -> CloneSource:
        """Return the source of the range's documents for one attempt; ``observe`` receives its oplog entries."""
        collection = self.table.collection
        namespace, pattern = collection.namespace, collection.key_pattern
        return CloneSource(context.mongod, namespace, collection.uuid, pattern, self.range, session_id, observe=observe)

    def new_history(self, context: ShardContext) -> DonorHistory:
        """Return the retryable writes in the range, for one attempt."""
        collection = self.table.collection
        pattern = collection.key_pattern
        reader = HistoryReader(collection.namespace, collection.uuid.bytes, pattern, self.range)
        return DonorHistory(context.mongod, reader)


async def plan_move(context: ShardContext, request: MoveRangeRequest) -> MovePlan | None:
    """Check against a fresh routing table that a range can be moved; return None if the recipient owns it already.

    Raises:
        CommandError: InvalidOptions, the recipient is this shard; StaleConfig, the request is for another incarnation
            of the collection; ConflictingOperationInProgress, migrations are disallowed; IncompatibleShardingMetadata,
            the range is not within one chunk of this shard; IndexNotFound, no index supports the shard key;
            InvalidUUID, the local collection has another UUID.
    """
    me = context.require_identity().shard_name
    if request.recipient == me:
        raise CommandError(ErrorCode.InvalidOptions, "Destination shard cannot be the same as source")
    await context.shard_client(request.recipient)
    table = await refreshed_table(context, request.namespace, request.epoch)
    if not table.collection.allow_migrations:
        raise CommandError(
            ErrorCode.ConflictingOperationInProgress,
            f"Collection {request.namespace} is undergoing changes so moveChunk is not allowed.",
        )
    chunk = _chunk_of(table, request)
    low = chunk.min if request.min is None else request.min
    high = await _upper_bound(context, table, chunk, low, request) if request.max is None else request.max
    moved = ChunkRange.of(table.key_pattern, low, high)
    if chunk.shard == request.recipient and moved.max_key <= chunk.max_key:
        return None
    if chunk.shard != me or moved.max_key > chunk.max_key:
        raise CommandError(
            ErrorCode.IncompatibleShardingMetadata,
            f"cannot move range {moved} of {request.namespace}: it is not contained within a chunk of shard {me}",
        )
    await _check_collection(context, table)
    return MovePlan(request, table, chunk, moved)


async def check_size(context: ShardContext, plan: MovePlan) -> int:
    """Refuse a range that is too big for a chunk, unless the request forces the move.

    Returns:
        The estimated number of documents in it.

    Raises:
        CommandError: ChunkTooBig.
    """
    limit = plan.request.max_chunk_bytes
    estimate = await plan.new_source(context, "").estimate()
    if limit is None or plan.request.force_jumbo != DO_NOT_FORCE_JUMBO or not estimate.average_bytes:
        return estimate.documents
    documents_max = _SLACK * (limit // estimate.average_bytes)
    if estimate.documents > documents_max:
        raise CommandError(
            ErrorCode.ChunkTooBig,
            f"Cannot move chunk: the maximum number of documents for a chunk is {documents_max}, the maximum chunk "
            f"size is {limit}, average document size is {estimate.average_bytes}. Found {estimate.documents} documents "
            f"in chunk ns: {plan.request.namespace} {document_text(plan.range.min)} -> {document_text(plan.range.max)}",
        )
    return estimate.documents


def _chunk_of(table: RoutingTable, request: MoveRangeRequest) -> RoutedChunk:
    """Return the chunk in which the range begins or, if only its end is given, the chunk before that end."""
    encode = table.key_pattern.key_bytes
    if request.min is not None:
        return table.chunk_for_key(encode(request.min))
    assert request.max is not None
    return table.chunk_before_key(encode(request.max))


async def _upper_bound(
    context: ShardContext, table: RoutingTable, chunk: RoutedChunk, low: bytes, request: MoveRangeRequest
) -> bytes:
    """Return the end of a range that is given by its beginning: the size limit, or its chunk's end."""
    if request.max_chunk_bytes is None or chunk.shard == request.recipient:
        return chunk.max
    namespace = request.namespace
    # MongoDB uses autoSplitVector, which only members of sharded clusters have. splitVector makes pieces of half the
    # size, so the second piece ends where the range does.
    split = {
        "splitVector": str(namespace),
        "keyPattern": raw_document(table.key_pattern.document),
        "min": raw_document(low),
        "max": raw_document(chunk.max),
        "maxChunkSizeBytes": Int64(request.max_chunk_bytes),
        "maxSplitPoints": 2,
    }
    reply = await context.mongod.command("admin", split)
    keys = reply["splitKeys"]
    return encode_document(keys[1]) if len(keys) == 2 else chunk.max


async def _check_collection(context: ShardContext, table: RoutingTable) -> None:
    namespace, pattern = table.namespace, table.key_pattern
    local = await local_collections.describe(context.mongod, namespace)
    if local is None or local.uuid != table.collection.uuid:
        raise CommandError(
            ErrorCode.InvalidUUID, f"{namespace} is not on this shard under the UUID {table.collection.uuid}"
        )
    indexes = await local_collections.list_indexes(context.mongod, namespace)
    if not any(pattern.is_supported_by_index(index) for index in indexes):
        raise CommandError(
            ErrorCode.IndexNotFound,
            f"can't find index with prefix {pattern} in storeCurrentLocs for {namespace}",
        )


_NO_USER: Final = sha256(b"").digest()
"""The user part of the id of a session that belongs to no user."""


def new_coordinator(donor: str, plan: MovePlan) -> MigrationCoordinatorDocument:
    """Return the coordinator document of a new migration, without a decision."""
    recipient = plan.request.recipient
    return MigrationCoordinatorDocument(
        id=uuid4(),
        session_id=new_session_id(donor, recipient),
        lsid={"id": Binary.from_uuid(uuid4()), "uid": _NO_USER},
        txn_number=0,
        namespace=str(plan.request.namespace),
        collection_uuid=plan.table.collection.uuid,
        donor=donor,
        recipient=recipient,
        range=plan.key_range,
        chunk_version=plan.chunk_version,
    )


async def new_range_deletion(
    mongod: LocalMongod, coordinator: MigrationCoordinatorDocument, request: MoveRangeRequest
) -> RangeDeletionTask:
    """Return the pending range deletion of the donor's documents, which becomes ready if the migration is committed."""
    pong = await mongod.command("admin", {"ping": 1})
    return RangeDeletionTask(
        id=coordinator.id,
        namespace=coordinator.namespace,
        collection_uuid=coordinator.collection_uuid,
        donor=coordinator.donor,
        range=coordinator.range,
        pending=True,
        when=CLEAN_NOW if request.wait_for_delete else CLEAN_DELAYED,
        timestamp=pong["operationTime"],
    )
