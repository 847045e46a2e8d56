"""Persisting how far an attempt has come, once a second."""

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final
from uuid import UUID

import trio

from shardwright.daemon.logs import get_logger
from shardwright.daemon.sidecar.mongod import LocalMongod
from shardwright.shardd.migration.recipient.checkpoint import CheckpointStore, MigrationCheckpoint
from shardwright.shardd.migration.recipient.clone import ClonedPrefix
from shardwright.shardd.migration.recipient.request import ReceiveRequest
from shardwright.shardd.migration.recipient.status import ReceiveStatus
from shardwright.shardd.range_deleter.range_deletions import RangeDeletions

if TYPE_CHECKING:
    from bson.timestamp import Timestamp

logger = get_logger("shardd.migration.recipient")

_INTERVAL_SECONDS: Final = 1.0


class CheckpointKeeper:
    """What of one attempt is written down: its checkpoint, and the number of documents that may become orphans.

    Args:
        mongod: the local one.
        range_deletions: of this shard.
        request: what is received.
        status: counts what has been cloned.

    Attributes:
        resumed: the checkpoint from which this attempt goes on; None if it begins again.
        has_predecessor: whether an attempt before this one may have left documents here.
        prefix: what of the clone can be relied on.
        position: everything up to this time of the donor's has been applied; None before it is known.
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
        """Find out whether there is something to go on from.

        Raises:
            CommandError: mongod refuses.
            BackendError: mongod does not answer.
        """
        request = self._request
        found = await self._store.load(request.migration_id)
        tasks = self._range_deletions.tasks_of(str(request.namespace))
        self.has_predecessor = found is not None or any(task.id == request.migration_id for task in tasks)
        if found is None:
            return
        if not found.is_trusted_by(request):
            logger.info("Restarting to receive a range", namespace=str(request.namespace), session=request.session_id)
            return
        self.resumed = found
        self.position = found.position
        self.prefix = ClonedPrefix(found.documents, found.size)
        self._status.cloned, self._status.cloned_bytes = found.documents, found.size
        self._orphans_reported = found.documents

    async def begin(self, collection_uuid: UUID) -> None:
        """Write down that there is this attempt, before it writes anything else.

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
        """Write it down again and again, until cancelled.

        Raises:
            CommandError: mongod refuses.
            BackendError: mongod does not answer.
        """
        while True:
            await trio.sleep(_INTERVAL_SECONDS)
            await self.save()

    async def save(self) -> None:
        """Write it down as it is now; what it covers has been written before.

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
