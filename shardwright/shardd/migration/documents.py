"""The persisted state of migrations in the ``config`` databases of donor and recipient, in MongoDB 6.0's schemas.

MongoDB has no ``migrationAttempts`` and ``migrationCheckpoints``; a migration resumes from them. Malformed documents
raise NoSuchKey or TypeMismatch.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from bson.binary import Binary
from bson.int64 import Int64
from bson.objectid import ObjectId

from shardwright.shardd.orphans.range_deletion_tasks import KeyRange
from shardwright.sharding.document_fields import optional, required, required_uuid
from shardwright.sharding.versions import ChunkVersion
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError

MIGRATION_COORDINATORS: Final = "migrationCoordinators"
MIGRATION_RECIPIENTS: Final = "migrationRecipients"
MIGRATION_ATTEMPTS: Final = "migrationAttempts"
MIGRATION_CHECKPOINTS: Final = "migrationCheckpoints"
"""Collections of the ``config`` database."""

COMMITTED: Final = "committed"
ABORTED: Final = "aborted"
"""The values of a coordinator's ``decision``."""


def new_session_id(donor: str, recipient: str) -> str:
    """Return a new migration session id, which distinguishes the attempt's commands from all others'."""
    return f"{donor}_{recipient}_{ObjectId()}"


@dataclass(frozen=True, slots=True)
class MigrationCoordinatorDocument:
    """A document of the donor's ``config.migrationCoordinators``: a migration that is not finished on both sides.

    Attributes:
        session_id: the migration session id of its first attempt.
        lsid: the logical session in which the donor sends its commands.
        txn_number: the transaction number of the donor's commands.
        chunk_version: the chunk's version before the migration.
        decision: `COMMITTED`, `ABORTED`, or None while it is undecided.
    """

    id: UUID
    session_id: str
    lsid: Mapping[str, Any]
    txn_number: int
    namespace: str
    collection_uuid: UUID
    donor: str
    recipient: str
    range: KeyRange
    chunk_version: ChunkVersion
    decision: str | None = None

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> "MigrationCoordinatorDocument":
        """Read a document of the collection."""
        return cls(
            id=required_uuid(document, "_id"),
            session_id=required(document, "migrationSessionId", str),
            lsid=required(document, "lsid", Mapping),
            txn_number=required(document, "txnNumber", int),
            namespace=required(document, "nss", str),
            collection_uuid=required_uuid(document, "collectionUuid"),
            donor=required(document, "donorShardId", str),
            recipient=required(document, "recipientShardId", str),
            range=KeyRange.from_document(required(document, "range", Mapping)),
            chunk_version=ChunkVersion.from_value(required(document, "preMigrationChunkVersion", Mapping)),
            decision=optional(document, "decision", str),
        )

    def to_document(self) -> dict[str, Any]:
        """Return the document as MongoDB 6.0 writes it."""
        document: dict[str, Any] = {
            "_id": Binary.from_uuid(self.id),
            "migrationSessionId": self.session_id,
            "lsid": dict(self.lsid),
            "txnNumber": Int64(self.txn_number),
            "nss": self.namespace,
            "collectionUuid": Binary.from_uuid(self.collection_uuid),
            "donorShardId": self.donor,
            "recipientShardId": self.recipient,
            "range": self.range.to_document(),
            "preMigrationChunkVersion": self.chunk_version.to_document(),
        }
        if self.decision is not None:
            document["decision"] = self.decision
        return document


@dataclass(frozen=True, slots=True)
class MigrationRecipientDocument:
    """A document of the recipient's ``config.migrationRecipients``, which lives as long as its critical section.

    Its attributes are described at `MigrationCoordinatorDocument`.
    """

    id: UUID
    session_id: str
    namespace: str
    range: KeyRange
    donor: str
    lsid: Mapping[str, Any]
    txn_number: int

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> "MigrationRecipientDocument":
        """Read a document of the collection."""
        return cls(
            id=required_uuid(document, "_id"),
            session_id=required(document, "migrationSessionId", str),
            namespace=required(document, "nss", str),
            range=KeyRange.from_document(required(document, "range", Mapping)),
            donor=required(document, "donorShardIdForLoggingPurposesOnly", str),
            lsid=required(document, "lsid", Mapping),
            txn_number=required(document, "txnNumber", int),
        )

    def to_document(self) -> dict[str, Any]:
        """Return the document as MongoDB 6.0 writes it."""
        return {
            "_id": Binary.from_uuid(self.id),
            "nss": self.namespace,
            "migrationSessionId": self.session_id,
            "range": self.range.to_document(),
            "donorShardIdForLoggingPurposesOnly": self.donor,
            "lsid": dict(self.lsid),
            "txnNumber": Int64(self.txn_number),
        }


@dataclass(frozen=True, slots=True)
class MigrationAttempt:
    """One attempt at a migration, recorded on both sides. A checkpoint is trusted only if their records agree.

    Attributes:
        session_id: the attempt's migration session id.
        end: when it was abandoned; None for the last one.
        documents: number of documents it cloned.
    """

    session_id: str
    start: datetime
    end: datetime | None = None
    documents: int = 0
    bytes: int = 0

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> "MigrationAttempt":
        """Read one entry of ``attempts``."""
        return cls(
            session_id=required(document, "sessionId", str),
            start=required(document, "start", datetime),
            end=optional(document, "end", datetime),
            documents=required(document, "documents", int),
            bytes=required(document, "bytes", int),
        )

    def to_document(self) -> dict[str, Any]:
        """Return the entry of ``attempts``."""
        document: dict[str, Any] = {"sessionId": self.session_id, "start": self.start}
        if self.end is not None:
            document["end"] = self.end
        return {**document, "documents": Int64(self.documents), "bytes": Int64(self.bytes)}


def attempts_from(documents: Sequence[Mapping[str, Any]]) -> tuple[MigrationAttempt, ...]:
    """Read the list of a migration's attempts."""
    if not all(isinstance(document, Mapping) for document in documents):
        raise CommandError(ErrorCode.TypeMismatch, '"attempts" must be an array of documents')
    return tuple(MigrationAttempt.from_document(document) for document in documents)
