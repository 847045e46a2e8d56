"""A recipient's persisted state: the checkpoint from which another attempt can resume, and the critical section.

**Checkpoint** (`MigrationCheckpoint`). It is a document of ``config.migrationCheckpoints``, a collection that MongoDB
does not have. A checkpoint is written before the first document of the range, and removed when the donor reports the
outcome of the migration. It is updated once a second.

**Critical section** (`RecipientCriticalSection`). The range is complete here, and the donor decides whether to commit.
Unlike the donor's section (`donor.commit`), this one is persisted before the donor may commit. So it also holds on the
next primary, until the donor reports that the decision has been made. The documents and their order are as in MongoDB
6.0.5: the ``migrationRecipients`` document is inserted before the ``collection_critical_sections`` document, and
removed after it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final, Self
from uuid import UUID

import trio
from bson.binary import Binary
from bson.timestamp import Timestamp

from shardwright.daemon.sidecar.mongod import LocalMongod
from shardwright.shardd.context.fail_point_names import MIGRATION_RECIPIENT_FAIL_POST_COMMIT_REFRESH
from shardwright.shardd.context.shard_context import ShardContext
from shardwright.shardd.local_mongod.local_collections import LOCAL_WRITE_CONCERN, MAJORITY, ConfigCollection
from shardwright.shardd.metadata.critical_sections import CRITICAL_SECTIONS, SectionDriver
from shardwright.shardd.metadata.namespace_state import NamespaceState
from shardwright.shardd.migration.active_migrations import (
    MIGRATION_CHECKPOINTS,
    MIGRATION_RECIPIENTS,
    MigrationAttempt,
    MigrationRecipientDocument,
    attempts_from,
)
from shardwright.shardd.migration.recipient.clone import ClonedPrefix
from shardwright.shardd.migration.recipient.recv_chunk import ReceiveRequest, ReceiveStatus
from shardwright.shardd.orphans.range_deletion_tasks import KeyRange
from shardwright.shardd.range_deleter.range_deleter_service import RangeDeletions
from shardwright.sharding.document_fields import optional, required, required_uuid
from shardwright.wire.errors import CommandError
from shardwright.wire.logger import get_logger
from shardwright.wire.rawbson import encode_document, raw_document

logger = get_logger("shardd.migration.recipient")


@dataclass(frozen=True, slots=True)
class MigrationCheckpoint:
    """One document.

    Attributes:
        attempts: the attempts that reached this recipient; the last one is active or was interrupted.
        cloned_up_to: a shard key below which the clone is complete: the range's documents are here as they were at some
            time after ``position``. None if nothing has been cloned.
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
        """Return the first checkpoint of a migration, before it has cloned anything."""
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
        """Read a document of the collection, or raise NoSuchKey or TypeMismatch."""
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
        """Return the document in its persisted form."""
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
        """Whether an attempt may resume from here: it is the same migration, and both sides' records of it agree.

        The donor records every attempt, the recipient those that reached it; both have them in the same order. An
        attempt without a record on the donor makes the checkpoint void.
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
        """Return a copy with a new active attempt, which resumes from here."""
        *before, last = self.attempts
        return replace(self, attempts=(*before, replace(last, end=now), MigrationAttempt(request.session_id, now)))

    def with_progress(
        self, key: bytes | None, position: Timestamp | None, documents: int, size: int
    ) -> "MigrationCheckpoint":
        """Return a copy with the current progress, counted for the current attempt.

        Args:
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
        """Return the checkpoint of a migration, or None."""
        document = await self._documents.get(Binary.from_uuid(migration_id))
        return None if document is None else MigrationCheckpoint.from_document(document)

    async def save(self, checkpoint: MigrationCheckpoint) -> None:
        """Insert a migration's checkpoint, or replace its previous one."""
        await self._documents.save(checkpoint.to_document())

    async def remove(self, migration_id: UUID) -> None:
        """Remove the checkpoint of a migration that is over."""
        await self._documents.remove(Binary.from_uuid(migration_id))


_INTERVAL_SECONDS: Final = 1.0


class CheckpointKeeper:
    """Persists one attempt's checkpoint, and the number of documents that may become orphans.

    Attributes:
        resumed: the checkpoint from which this attempt resumes; None if it starts from scratch.
        has_predecessor: whether an earlier attempt may have left documents here.
        prefix: the part of the clone that a checkpoint can cover.
        position: the time in the donor's oplog of the last applied change; None while unknown.
    """

    def __init__(
        self, mongod: LocalMongod, range_deletions: RangeDeletions, request: ReceiveRequest, status: ReceiveStatus
    ) -> None:
        self.resumed: MigrationCheckpoint | None = None
        self.has_predecessor = False
        self.prefix = ClonedPrefix()
        self.position: Timestamp | None = None
        self._range_deletions = range_deletions
        self._request = request
        self._status = status
        self._store = CheckpointStore(mongod)
        self._checkpoint: MigrationCheckpoint | None = None
        self._orphans_reported = 0
        self._saving = trio.Lock()

    async def load(self) -> None:
        """Load the checkpoint of an earlier attempt, if there is one to resume from."""
        request = self._request
        found = await self._store.load(request.migration_id)
        tasks = self._range_deletions.known.tasks_of(str(request.namespace))
        self.has_predecessor = found is not None or any(task.id == request.migration_id for task in tasks)
        if found is None:
            return
        if not found.is_trusted_by(request):
            logger.info(
                "Discarding an untrusted checkpoint", namespace=str(request.namespace), session=request.session_id
            )
            return
        self.resumed = found
        self.position = found.position
        self.prefix = ClonedPrefix(found.documents, found.size)
        self._status.cloned, self._status.cloned_bytes = found.documents, found.size
        self._orphans_reported = found.documents

    async def begin(self, collection_uuid: UUID) -> None:
        """Persist the attempt, before it writes anything else."""
        now = datetime.now(UTC)
        if self.resumed is None:
            self._checkpoint = MigrationCheckpoint.begin(self._request, collection_uuid, now)
        else:
            self._checkpoint = self.resumed.with_new_attempt(self._request, now)
        await self._store.save(self._checkpoint)

    async def keep(self) -> None:
        """Save the progress at intervals until cancelled."""
        while True:
            await trio.sleep(_INTERVAL_SECONDS)
            await self.save()

    async def save(self) -> None:
        """Save the current progress; everything it covers has been written before."""
        async with self._saving:
            await self._save()

    async def _save(self) -> None:
        assert self._checkpoint is not None
        await self._report_orphans()
        cloned = self.prefix.checkpoint(self._request.pattern)
        if cloned is None or self.position is None:
            return
        checkpoint = self._checkpoint.with_progress(cloned[0], self.position, cloned[1], cloned[2])
        if checkpoint != self._checkpoint:
            self._checkpoint = checkpoint
            await self._store.save(checkpoint)

    async def _report_orphans(self) -> None:
        count = self._status.cloned - self._orphans_reported
        if count:
            self._orphans_reported += count
            await self._range_deletions.add_orphan_count(self._request.migration_id, count)


class RecipientCriticalSection:
    """One migration's critical section.

    Attributes:
        has_begun: whether it may be in effect or persisted, so that it has to be left.
    """

    def __init__(self, context: ShardContext, recipient: MigrationRecipientDocument) -> None:
        self.has_begun = False
        self._mongod = context.mongod
        self._context = context
        self._recipient = recipient
        self._reason = {"recvChunk": 1, "sessionId": recipient.session_id}
        self._section = SectionDriver(context.namespace(recipient.namespace), self._reason)

    async def begin(self) -> None:
        """Block writes, and insert the section's documents, which become durable only with `complete`.

        Running writes need not end first: they were admitted before the range arrived and do not touch it.
        """
        recipient = self._recipient
        section = {"_id": recipient.namespace, "reason": self._reason, "blockReads": False}
        with trio.CancelScope(shield=True):  # if cancelled, they might reach mongod after the deletes of `leave`
            self.has_begun = True
            await self._insert(MIGRATION_RECIPIENTS, recipient.to_document())
            await self._insert(CRITICAL_SECTIONS, section)
        await self._section.block_writes()

    async def complete(self) -> None:
        """Block reads too. On return a majority has the critical section and everything written before it."""
        self._section.block_reads()
        await self._save_section(MAJORITY)

    async def restore(self) -> bool:
        """Re-enter the section of an earlier term; return whether it was complete there."""
        self.has_begun = True
        await self._section.restore()
        section = await ConfigCollection(self._mongod, CRITICAL_SECTIONS).get(self._recipient.namespace)
        return section is not None and section["reason"] == self._reason and bool(section["blockReads"])

    async def leave(self) -> None:
        """Refresh the placement after the decision, release the waiting operations, and remove the documents.

        After an error it has to be called again.
        """
        state = self._section.state
        if self._section.section is not None:
            await self._refresh(state)
            state.note_arrival()  # or not, after an abort; then some transactions are repeated in vain
            # Operations need not wait for the deletes: a crash now would only bring the section back until the donor,
            # which has had no reply, reports the decision again.
            self._section.leave()
        await self._delete_section()
        await ConfigCollection(self._mongod, MIGRATION_RECIPIENTS).remove(Binary.from_uuid(self._recipient.id))
        self.has_begun = False

    async def _refresh(self, state: NamespaceState) -> None:
        # This also discards the result of a refresh that began before the decision.
        state.forget()
        try:
            self._context.fail_points.fail_if_on(MIGRATION_RECIPIENT_FAIL_POST_COMMIT_REFRESH)
            await self._context.refresher.refresh_collection(state)
        except CommandError as error:
            # Operations will refresh by themselves, once the config servers answer.
            logger.info("Leaving the critical section without a refresh", namespace=state.namespace, error=str(error))

    async def _insert(self, collection: str, document: Mapping[str, Any]) -> None:
        insert = {"insert": collection, "documents": [document], "writeConcern": LOCAL_WRITE_CONCERN}
        await self._mongod.write("config", insert)

    async def _save_section(self, write_concern: Mapping[str, Any]) -> None:
        query = {"_id": self._recipient.namespace, "reason": self._reason}
        update = {"q": query, "u": {"$set": {"blockReads": True}}}
        await self._mongod.write(
            "config", {"update": CRITICAL_SECTIONS, "updates": [update], "writeConcern": write_concern}
        )

    async def _delete_section(self) -> None:
        delete = {"q": {"_id": self._recipient.namespace, "reason": self._reason}, "limit": 1}
        await self._mongod.write(
            "config", {"delete": CRITICAL_SECTIONS, "deletes": [delete], "writeConcern": LOCAL_WRITE_CONCERN}
        )


async def recipients_left_behind(context: ShardContext) -> list[MigrationRecipientDocument]:
    """Load the migrations whose critical sections the last primary left behind."""
    documents = await ConfigCollection(context.mongod, MIGRATION_RECIPIENTS).all()
    return [MigrationRecipientDocument.from_document(document) for document in documents]
