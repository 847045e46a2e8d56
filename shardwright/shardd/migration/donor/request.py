"""The arguments of ``_shardsvrMoveRange``, as received and as persisted for the next primary."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from bson.objectid import ObjectId

from shardwright.shardd.migration.active_migrations import DonorMigrationKey
from shardwright.sharding.arguments import full_namespace
from shardwright.sharding.document_fields import optional, required
from shardwright.sharding.namespace import Namespace
from shardwright.wire.arguments import Arguments
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError, missing_field
from shardwright.wire.rawbson import encode_document, raw_document
from shardwright.wire.request import Request

DO_NOT_FORCE_JUMBO: Final = 0
"""The ``forceJumbo`` of a move that is refused if the range is too big."""


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
