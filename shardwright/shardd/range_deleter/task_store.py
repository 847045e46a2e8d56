"""``config.rangeDeletions`` of the local mongod: the ranges of this shard that are, or may have to be, deleted."""

from typing import Final
from uuid import UUID

import bson
from bson.binary import Binary
from bson.timestamp import Timestamp

from shardwright.daemon.sidecar.mongod import LocalMongod
from shardwright.shardd.local_mongod.config_collection import MAJORITY, ConfigCollection
from shardwright.shardd.orphans.range_deletion_tasks import RANGE_DELETIONS, RangeDeletionTask
from shardwright.sharding.catalog.indexes import RANGE_DELETIONS_INDEXES
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError

_CONFIG: Final = "config"


class RangeDeletionStore:
    """The persisted tasks of range deletions.

    Methods raise CommandError if mongod refuses, and BackendError if it does not answer. Writes other than
    `add_orphans` wait for a majority.
    """

    def __init__(self, mongod: LocalMongod) -> None:
        self._mongod = mongod
        self._documents = ConfigCollection(mongod, RANGE_DELETIONS)

    async def prepare(self) -> None:
        """Create the index that MongoDB has on the collection; only on a primary."""
        indexes = [each.to_specification() for each in RANGE_DELETIONS_INDEXES]
        await self._mongod.command(_CONFIG, {"createIndexes": RANGE_DELETIONS, "indexes": indexes})

    async def load(self) -> list[RangeDeletionTask]:
        """Return all tasks on the local mongod, whatever its role; CommandError if one is malformed."""
        documents = await self._documents.all(may_be_secondary=True)
        return [RangeDeletionTask.from_document(document) for document in documents]

    async def load_at(self, namespace: str, time: Timestamp) -> list[RangeDeletionTask]:
        """Return a collection's tasks as they were at a cluster time; mongod may have any role.

        Raises:
            CommandError: SnapshotTooOld, or another error of mongod about that time; or a document is malformed.
        """
        documents = await self._documents.all_at(time, {"nss": namespace})
        return [RangeDeletionTask.from_document(document) for document in documents]

    async def insert(self, task: RangeDeletionTask) -> None:
        """Insert a task; does nothing if it exists already."""
        insert = {"insert": RANGE_DELETIONS, "documents": [task.to_document()], "writeConcern": MAJORITY}
        try:
            await self._mongod.write(_CONFIG, insert)
        except CommandError as error:
            if error.code != ErrorCode.DuplicateKey:
                raise

    async def mark_ready(self, migration_id: UUID, when: str, timestamp: Timestamp) -> RangeDeletionTask | None:
        """Mark a task as no longer pending; return the updated task, None if it does not exist."""
        pending = {"_id": Binary.from_uuid(migration_id), "pending": {"$exists": True}}
        ready = {"$unset": {"pending": ""}, "$set": {"whenToClean": when, "timestamp": timestamp}}
        update = {"update": RANGE_DELETIONS, "updates": [{"q": pending, "u": ready}], "writeConcern": MAJORITY}
        await self._mongod.write(_CONFIG, update)
        document = await self._documents.get(Binary.from_uuid(migration_id))
        return None if document is None else RangeDeletionTask.from_document(document)

    async def rename(self, collection_uuid: UUID, target: str) -> None:
        """Change the collection name in the tasks of a collection."""
        for task in await self.load():
            if task.collection_uuid == collection_uuid:
                # One by one, so that mongod can refuse them if they arrive in a later term.
                renaming = {"q": {"_id": Binary.from_uuid(task.id)}, "u": {"$set": {"nss": target}}}
                update = {"update": RANGE_DELETIONS, "updates": [renaming], "writeConcern": MAJORITY}
                await self._mongod.write(_CONFIG, update)

    async def delete(self, migration_id: UUID) -> None:
        """Remove a task, if it exists."""
        await self._documents.remove(Binary.from_uuid(migration_id))

    async def add_orphans(self, migration_id: UUID, count: int) -> None:
        """Add to the number of orphans of a task."""
        update = {"q": {"_id": Binary.from_uuid(migration_id)}, "u": {"$inc": {"numOrphanDocs": bson.Int64(count)}}}
        await self._mongod.write(_CONFIG, {"update": RANGE_DELETIONS, "updates": [update], "writeConcern": {"w": 1}})
