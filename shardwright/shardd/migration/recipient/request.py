"""The arguments of ``_recvChunkStart``."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self
from uuid import UUID

from shardwright.shardd.migration.active_migrations import migration_session_argument
from shardwright.shardd.migration.documents import MigrationAttempt, attempts_from
from shardwright.shardd.orphans.range_deletion_tasks import KeyRange
from shardwright.sharding.arguments import full_namespace
from shardwright.sharding.chunks import ChunkRange
from shardwright.sharding.document_fields import optional, optional_uuid, required, required_uuid
from shardwright.sharding.namespace import Namespace
from shardwright.sharding.shard_key import ShardKeyPattern
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.request import Request


@dataclass(frozen=True, slots=True)
class ReceiveRequest:
    """A request to receive a range.

    Attributes:
        session_id: the migration session id of this attempt.
        collection_uuid: its UUID on the donor; None if the request omits it.
        donor_connection_string: ``set/host:port,…`` of the donor.
        recipient: id of this shard.
        lsid: the logical session in which the donor sends its commands.
        txn_number: the transaction number of the donor's commands.
        secondary_throttle: whether to wait for secondaries after every batch of documents.
        write_concern: the write concern to wait for; empty for the default.
        attempts: the donor's record of the attempts; this one is the last.
    """

    migration_id: UUID
    session_id: str
    namespace: Namespace
    collection_uuid: UUID | None
    pattern: ShardKeyPattern
    range: ChunkRange
    donor: str
    donor_connection_string: str
    recipient: str
    lsid: Mapping[str, Any]
    txn_number: int
    secondary_throttle: bool
    write_concern: Mapping[str, Any]
    attempts: tuple[MigrationAttempt, ...] = ()

    @classmethod
    def from_request(cls, request: Request) -> Self:
        """Read the arguments of a command.

        Raises NoSuchKey, TypeMismatch, InvalidNamespace, InvalidUUID or BadValue if they are malformed.
        """
        document = request.document
        namespace = full_namespace(request)
        connection_string = required(document, "from", str)
        session_id = migration_session_argument(request)
        pattern = ShardKeyPattern.from_bson(_raw(request, b"shardKeyPattern"))
        throttle = document.get("secondaryThrottle", False)
        return cls(
            migration_id=required_uuid(document, "uuid"),
            session_id=session_id,
            namespace=namespace,
            collection_uuid=optional_uuid(document, "collectionUUID"),
            pattern=pattern,
            range=ChunkRange.of(pattern, _raw(request, b"min"), _raw(request, b"max")),
            donor=required(document, "fromShardName", str),
            donor_connection_string=connection_string,
            recipient=required(document, "toShardName", str),
            lsid=required(document, "lsid", Mapping),
            txn_number=required(document, "txnNumber", int),
            secondary_throttle=bool(throttle),
            write_concern=optional(document, "writeConcern", Mapping) or {},
            attempts=attempts_from(optional(document, "attempts", list) or ()),
        )

    @property
    def key_range(self) -> KeyRange:
        """The range in its persisted form."""
        return KeyRange(self.range.min, self.range.max)


def _raw(request: Request, name: bytes) -> bytes:
    """Return a document argument, raw."""
    value = request.raw_object(name)
    if value is None:
        raise CommandError(ErrorCode.NoSuchKey, f'Missing expected field "{name.decode(errors="replace")}"')
    return value
