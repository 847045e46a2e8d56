"""Persisting the progress of an attempt, once a second."""

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final
from uuid import UUID

import trio

from shardwright.daemon.sidecar.mongod import LocalMongod
from shardwright.shardd.migration.recipient.checkpoint import CheckpointStore, MigrationCheckpoint
from shardwright.shardd.migration.recipient.clone import ClonedPrefix
from shardwright.shardd.migration.recipient.request import ReceiveRequest
from shardwright.shardd.migration.recipient.status import ReceiveStatus
from shardwright.shardd.range_deleter.range_deletions import RangeDeletions
from shardwright.wire.logger import get_logger

if TYPE_CHECKING:
    from bson.timestamp import Timestamp

logger = get_logger("shardd.migration.recipient")

_INTERVAL_SECONDS: Final = 1.0


class CheckpointKeeper:
    """Persists one attempt's checkpoint, and the number of documents that may become orphans.

    Args:
        mongod: the local mongod.
        range_deletions: this shard's range deletions.
        request: the request to receive the range.
        status: counts the cloned documents.

    Attributes:
        resumed: the checkpoint from which this attempt resumes; None if it starts from scratch.
        has_predecessor: whether an earlier attempt may have left documents here.
        prefix: the part of the clone that a checkpoint can cover.
        position: the time in the donor's oplog up to which changes have been applied; None while unknown.
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
        """Load the checkpoint of an earlier attempt, if there is one to resume from.

        Raises:
            CommandError: mongod refuses.
            BackendError: mongod does not answer.
        """
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
        """Persist the attempt, before it writes anything else.

        Raises:
            CommandError: mongod refuses.
            BackendError: mongod does not answer.
        """
        now = datetime.now(UTC)
        if self.resumed is None:
            self._checkpoint = MigrationCheckpoint.begin(self._request, collection_uuid, now)
        else:
            self._checkpoint = self.resumed.with_new_attempt(self._request, now)
        await self._store.save(self._checkpoint)

    async def keep(self) -> None:
        """Save the progress at intervals until cancelled.

        Raises:
            CommandError: mongod refuses.
            BackendError: mongod does not answer.
        """
        while True:
            await trio.sleep(_INTERVAL_SECONDS)
            await self.save()

    async def save(self) -> None:
        """Save the current progress; everything it covers has been written before.

        Raises:
            CommandError: mongod refuses.
            BackendError: mongod does not answer.
        """
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
