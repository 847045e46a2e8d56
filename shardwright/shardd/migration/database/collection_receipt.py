"""Receiving one unsharded collection."""

from shardwright.shardd.context.shard_context import ShardContext
from shardwright.shardd.local_mongod import local_collections
from shardwright.shardd.local_mongod.reserved_sessions import ReservedSessions
from shardwright.shardd.migration.client_load import ClientLoad
from shardwright.shardd.migration.database.copy_writer import CopyWriter, OrderedCopyWriter
from shardwright.shardd.migration.database.database_link import DatabaseLink
from shardwright.shardd.migration.database.moved_collections import MovedCollection, copy_uuid
from shardwright.shardd.migration.database.receive_database import ReceiveDatabase
from shardwright.shardd.migration.recipient.clone import CloneCounts, ClonedPrefix, Cloner


class CollectionReceipt:
    """One attempt to receive a collection.

    Args:
        context: this shard daemon's context.
        sessions: the reserved sessions in which documents are written.
        request: the request to receive the database.
        collection: the collection on the donor.

    Attributes:
        collection: see above.
        uuid: the UUID of the copy.
        writer: writes it.
    """

    def __init__(
        self,
        context: ShardContext,
        sessions: ReservedSessions,
        request: ReceiveDatabase,
        collection: MovedCollection,
    ) -> None:
        self.collection = collection
        self.uuid = copy_uuid(request.move_id, collection.uuid)
        kind = CopyWriter if collection.is_written_in_transactions else OrderedCopyWriter
        self.writer = kind(context.mongod, sessions, request.of_collection(collection.namespace, collection.uuid))
        self._context = context
        self._sessions = sessions

    async def clone(self, link: DatabaseLink, counts: CloneCounts, load: ClientLoad) -> None:
        """Create the collection and its indexes, and clone its documents.

        Raises:
            CommandError: InvalidUUID, another collection of that name exists; NamespaceNotFound, the donor has dropped
                it; or an error of the donor or the local mongod.
            BackendError: the local mongod does not answer.
        """
        first = await link.clone_batch(self.collection.uuid, 0)
        await self._create()
        cloner = Cloner(
            lambda number: link.clone_batch(self.collection.uuid, number),
            self._sessions,
            self.writer,
            counts,
            ClonedPrefix(),
            load,
            writers=self.writer.writers,
        )
        await cloner.run(first)

    async def _create(self) -> None:
        mongod, moved = self._context.mongod, self.collection
        namespace = moved.namespace
        await local_collections.create_with_uuid(mongod, namespace, self.uuid, moved.options, moved.id_index)
        self._context.namespace(str(namespace)).forget()
        indexes = moved.indexes
        if "collation" in moved.options:
            # A specification without a collation means the simple one, but createIndexes would apply the collection's.
            indexes = tuple({"collation": {"locale": "simple"}, **each} for each in indexes)
        await local_collections.create_indexes(mongod, namespace, indexes)
