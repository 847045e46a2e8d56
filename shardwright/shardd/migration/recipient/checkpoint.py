"""``config.migrationCheckpoints``: a recipient's progress, from which another attempt can resume.

MongoDB has no such collection. A checkpoint is written before the first document of the range, and removed when the
donor reports the outcome of the migration.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Self
from uuid import UUID

from bson.binary import Binary
from bson.timestamp import Timestamp

from shardwright.daemon.sidecar.mongod import LocalMongod
from shardwright.shardd.local_mongod.config_collection import ConfigCollection
from shardwright.shardd.migration.documents import MIGRATION_CHECKPOINTS, MigrationAttempt, attempts_from
from shardwright.shardd.migration.recipient.request import ReceiveRequest
from shardwright.shardd.orphans.range_deletion_task import KeyRange
from shardwright.sharding.document_fields import optional, required, required_uuid
from shardwright.wire.rawbson import encode_document, raw_document


@dataclass(frozen=True, slots=True)
class MigrationCheckpoint:
    """One document.

    Attributes:
        id: the migration's UUID.
        namespace: the collection.
        collection_uuid: its UUID.
        range: the range being received.
        donor: id of the donor.
        attempts: the attempts that this recipient knows of; the last one is under way or was cut off.
        cloned_up_to: a shard key below which the clone is complete: the range's documents are here as they were at
            some time after ``position``. None if nothing has been cloned.
        position: the time in the donor's oplog from which changes still have to be fetched; None if unknown.
        documents: number of documents cloned by all attempts that are still here.
        size: their size in bytes.
    """

    id: UUID
    namespace: str
    collection_uuid: UUID
    range: KeyRange
    donor: str
    attempts: tuple[MigrationAttempt, ...]
    cloned_up_to: bytes | None = None
    position: Timestamp | None = None
    documents: int = 0
    size: int = 0

    @classmethod
    def begin(cls, request: ReceiveRequest, collection_uuid: UUID, now: datetime) -> Self:
        """The first checkpoint of a migration, before it has cloned anything."""
        return cls(
            request.migration_id,
            str(request.namespace),
            collection_uuid,
            request.key_range,
            request.donor,
            (MigrationAttempt(request.session_id, now),),
        )

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Self:
        """Read a document of the collection.

        Raises:
            CommandError: NoSuchKey or TypeMismatch.
        """
        key = optional(document, "clonedUpTo", Mapping, type(None))
        counts = required(document, "counts", Mapping)
        return cls(
            id=required_uuid(document, "_id"),
            namespace=required(document, "nss", str),
            collection_uuid=required_uuid(document, "collectionUuid"),
            range=KeyRange.from_document(required(document, "range", Mapping)),
            donor=required(document, "donorShardId", str),
            attempts=attempts_from(required(document, "attempts", list)),
            cloned_up_to=None if key is None else encode_document(key),
            position=optional(document, "oplogPosition", Timestamp, type(None)),
            documents=required(counts, "cloned", int),
            size=required(counts, "clonedBytes", int),
        )

    def to_document(self) -> dict[str, Any]:
        """The document in its persisted form."""
        return {
            "_id": Binary.from_uuid(self.id),
            "nss": self.namespace,
            "collectionUuid": Binary.from_uuid(self.collection_uuid),
            "range": self.range.to_document(),
            "donorShardId": self.donor,
            "attempts": [attempt.to_document() for attempt in self.attempts],
            "clonedUpTo": None if self.cloned_up_to is None else raw_document(self.cloned_up_to),
            "oplogPosition": self.position,
            "counts": {"cloned": self.documents, "clonedBytes": self.size},
        }

    def is_trusted_by(self, request: ReceiveRequest) -> bool:
        """Whether an attempt may resume from here: it is the same migration, and both sides remember it alike.

        The donor knows every attempt, the recipient those that reached it; both have them in the same order. An attempt
        that the donor does not know makes the checkpoint void.
        """
        if (self.namespace, self.donor, self.range) != (str(request.namespace), request.donor, request.key_range):
            return False
        if request.collection_uuid not in (None, self.collection_uuid):
            return False
        if self.cloned_up_to is None or self.position is None:
            return False
        donors = iter(request.attempts)
        return all(any(each.session_id == own.session_id for each in donors) for own in self.attempts)

    def with_new_attempt(self, request: ReceiveRequest, now: datetime) -> "MigrationCheckpoint":
        """A copy with a new attempt under way, which resumes from here."""
        *before, last = self.attempts
        return replace(self, attempts=(*before, replace(last, end=now), MigrationAttempt(request.session_id, now)))

    def with_progress(
        self, key: bytes | None, position: Timestamp | None, documents: int, size: int
    ) -> "MigrationCheckpoint":
        """A copy with the current progress, in which the attempt under way has its share.

        Args:
            key: the new ``cloned_up_to``.
            position: the new ``position``.
            documents: number of documents cloned by all attempts.
            size: their size in bytes.
        """
        *before, last = self.attempts
        own_documents = documents - sum(each.documents for each in before)
        own_bytes = size - sum(each.bytes for each in before)
        attempt = replace(last, documents=own_documents, bytes=own_bytes)
        return replace(
            self,
            attempts=(*before, attempt),
            cloned_up_to=key,
            position=position,
            documents=documents,
            size=size,
        )


class CheckpointStore:
    """The checkpoints on one mongod.

    Writes wait for a majority, which then also has the documents that the checkpoint covers: they were written before.
    All methods raise CommandError if mongod refuses or is not primary, and BackendError if it does not answer.
    """

    def __init__(self, mongod: LocalMongod) -> None:
        self._documents = ConfigCollection(mongod, MIGRATION_CHECKPOINTS)

    async def load(self, migration_id: UUID) -> MigrationCheckpoint | None:
        """The checkpoint of a migration, None if there is none."""
        document = await self._documents.get(Binary.from_uuid(migration_id))
        return None if document is None else MigrationCheckpoint.from_document(document)

    async def save(self, checkpoint: MigrationCheckpoint) -> None:
        """Insert a migration's checkpoint, or replace its previous one."""
        await self._documents.save(checkpoint.to_document())

    async def remove(self, migration_id: UUID) -> None:
        """Remove the checkpoint of a migration that is over."""
        await self._documents.remove(Binary.from_uuid(migration_id))
