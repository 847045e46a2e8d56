"""``config.migrationCheckpoints``: how far a recipient has come, so that another attempt can go on from there.

MongoDB has no such collection. A document is written before the first one of the range is, and goes when the donor
gives the outcome of the migration.
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
from shardwright.sharding.catalog.fields import optional, required, required_uuid
from shardwright.wire.rawbson import encode_document, raw_document


@dataclass(frozen=True, slots=True)
class MigrationCheckpoint:
    """One document.

    Attributes:
        id: of the migration.
        namespace: the collection.
        collection_uuid: its UUID.
        range: what is received.
        donor: id of the shard that gives it.
        attempts: those of which this recipient knows, the last one under way or cut off.
        cloned_up_to: a shard key: all documents of the range below it, as they were at some time after ``position``,
            are here. None as long as there are none.
        position: the time in the donor's oplog from which on changes are still to be asked for; None if unknown.
        documents: how many documents all attempts have cloned that are still here.
        size: bytes of them.
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
        """Of a migration of which nothing is here."""
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
        """The document as it is written."""
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
        """Whether an attempt may go on from here: it is the same migration, and both sides remember it alike.

        The donor knows of every attempt, this side of those that reached it; in both memories they are in the same
        order. Nothing can be here that was not sent.
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
        """After the beginning of an attempt that goes on from here."""
        *before, last = self.attempts
        return replace(self, attempts=(*before, replace(last, end=now), MigrationAttempt(request.session_id, now)))

    def with_progress(
        self, key: bytes | None, position: Timestamp | None, documents: int, size: int
    ) -> "MigrationCheckpoint":
        """After the attempt under way has cloned so many documents, and so many bytes, by itself.

        Args:
            key: see ``cloned_up_to``.
            position: see there.
            documents: how many there are by now.
            size: bytes of them.
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
    """The checkpoints on one mongod. Writes wait for a majority: what a checkpoint covers was written before it.

    All methods raise a CommandError when mongod refuses or is not primary, and a BackendError when it is gone.
    """

    def __init__(self, mongod: LocalMongod) -> None:
        self._documents = ConfigCollection(mongod, MIGRATION_CHECKPOINTS)

    async def load(self, migration_id: UUID) -> MigrationCheckpoint | None:
        """The checkpoint of a migration, None if there is none."""
        document = await self._documents.get(Binary.from_uuid(migration_id))
        return None if document is None else MigrationCheckpoint.from_document(document)

    async def save(self, checkpoint: MigrationCheckpoint) -> None:
        """Write a checkpoint in the place of the last one."""
        await self._documents.save(checkpoint.to_document())

    async def remove(self, migration_id: UUID) -> None:
        """Nothing is to be resumed any more."""
        await self._documents.remove(Binary.from_uuid(migration_id))
