"""Receiving one unsharded collection: pulling batches from the donor, and writing the copy.

Most collections are written in transactions, as ranges are (`shardd.migration.recipient.clone`). mongod does not
allow them on capped and system collections. These are written by retryable writes of the same sessions, which change
streams leave out too, in the order of a capped collection.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final
from uuid import UUID

from bson.binary import Binary

from shardwright.daemon.sidecar.mongod import LocalMongod
from shardwright.shardd.context.shard_context import ShardContext
from shardwright.shardd.local_mongod import local_collections
from shardwright.shardd.local_mongod.local_collections import LOCAL_WRITE_CONCERN
from shardwright.shardd.local_mongod.reserved_sessions import (
    ReservedSession,
    ReservedSessions,
    required_array,
    restoring_updates,
)
from shardwright.shardd.migration.active_migrations import ClientLoad
from shardwright.shardd.migration.donor.database_source import CollectionChanges
from shardwright.shardd.migration.moved_database import MovedCollection, ReceiveDatabase, copy_uuid
from shardwright.shardd.migration.recipient.clone import CloneCounts, ClonedPrefix, Cloner, RangeWriter, cut
from shardwright.shardd.migration.recipient.donor_link import CloneBatch, DonorConnection
from shardwright.shardd.migration.recipient.recv_chunk import ReceiveRequest
from shardwright.shardd.range_deleter.range_deleter import one_of
from shardwright.sharding.namespace import Namespace
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.rawbson import array_documents, decode_value, find, raw_document

CLONE: str = "_shardsvrMovePrimaryClone"
MODS: str = "_shardsvrMovePrimaryMods"


class DatabaseLink:
    """Sends commands to the donor of one database.

    Methods raise CommandError as `DonorConnection.command` does.

    Attributes:
        history: the connection for the session history.
    """

    def __init__(self, context: ShardContext, request: ReceiveDatabase) -> None:
        whole = request.of_collection(Namespace(request.db))
        self._request = request
        self._documents = DonorConnection(context, whole)
        self._others = DonorConnection(context, whole)
        self.history = DonorConnection(context, whole)
        self._mods_number = 0

    async def clone_batch(self, uuid: UUID, number: int) -> CloneBatch:
        """Fetch a batch of the clone of a collection.

        Args:
            uuid: its UUID on the donor.
            number: the number of the last batch fetched, or the next; they start at 0.

        Raises:
            CommandError: also NamespaceNotFound, the collection is gone.
        """
        reply = await self._documents.command(
            "admin", {**self._command(CLONE, number), "collectionUUID": Binary.from_uuid(uuid)}
        )
        busy = find(reply, b"busy")
        is_busy = busy is not None and bool(decode_value(reply, busy))
        return CloneBatch(reply, required_array(reply, b"objects"), None, is_busy)

    async def changes(self) -> tuple[list[CollectionChanges], bool]:
        """Fetch the next changes, which acknowledges the last ones; also return whether more are queued."""
        reply = await self._others.command("admin", self._command(MODS, self._mods_number))
        self._mods_number += 1
        changes = [_changes(each) for each in array_documents(reply, required_array(reply, b"collections"))]
        queued = find(reply, b"queued")
        return changes, queued is not None and bool(decode_value(reply, queued))

    def close(self) -> None:
        """Close the connections."""
        for connection in (self._documents, self._others, self.history):
            connection.close()

    def _command(self, name: str, number: int) -> dict[str, Any]:
        return {name: self._request.db, "sessionId": self._request.session_id, "number": number}


def _changes(document: bytes) -> CollectionChanges:
    uuid = find(document, b"uuid")
    assert uuid is not None
    deleted, reload = (array_documents(document, required_array(document, name)) for name in (b"deleted", b"reload"))
    return CollectionChanges(UUID(bytes=bytes(decode_value(document, uuid))), deleted, reload)


_AT_ONCE: Final = 1_000


class CopyWriter(RangeWriter):
    """Writes in transactions."""

    writers: int = 2

    def __init__(self, mongod: LocalMongod, sessions: ReservedSessions, request: ReceiveRequest) -> None:
        super().__init__(mongod, request)
        self._sessions = sessions

    async def apply(self, changes: CollectionChanges) -> None:
        """Apply a batch of changes, possibly for a second time."""
        self.replace(changes.deleted)
        self.replace(changes.reload)
        async with self._sessions.session() as session:
            documents = [*changes.deleted, *changes.reload]
            for begin in range(0, len(documents), _AT_ONCE):
                ids = raw_document(one_of(documents[begin : begin + _AT_ONCE]))
                await session.delete(self._namespace, [{"q": {"_id": ids}, "limit": 0}])
            for pieces, _ in cut([*self.take_postponed(), *changes.reload]):
                await self.insert(session, pieces)

    async def complete(self) -> None:
        """Insert the postponed documents after all changes, or raise DuplicateKey if some still cannot be inserted."""
        if self.has_postponed:
            documents = self.take_postponed()
            async with self._sessions.session() as session:
                for pieces, _ in cut(documents):
                    await self.insert(session, pieces)
            self.check_complete()


class OrderedCopyWriter(CopyWriter):
    """Writes without transactions, one document after the other."""

    writers: int = 1

    async def insert(self, session: ReservedSession, documents: Sequence[bytes]) -> Sequence[bytes]:
        """Insert documents in their order, except those that a change has already brought; return the inserted ones.

        Raises:
            CommandError: any error of an insert but DuplicateKey of the ``_id``.
        """
        inserted: list[bytes] = []
        left = list(documents)
        while left:
            command = {"insert": self._namespace.collection, "documents": list(map(raw_document, left))}
            try:
                await self._write(session, command)
            except CommandError as error:
                position = error.extra.get("index")
                is_there = error.code == ErrorCode.DuplicateKey and error.extra.get("keyPattern") == {"_id": 1}
                if not is_there or not isinstance(position, int):
                    raise
                inserted += left[:position]
                left = left[position + 1 :]
            else:
                inserted += left
                break
        if updates := restoring_updates(inserted):
            await self._write(session, {"update": self._namespace.collection, "updates": updates})
        return inserted

    async def apply(self, changes: CollectionChanges) -> None:
        """Apply a batch of changes, possibly for a second time; an existing document keeps its place."""
        collection = self._namespace.collection
        deletes = [{"q": {"_id": raw_document(one_of([each]))}, "limit": 1} for each in changes.deleted]
        async with self._sessions.session() as session:
            for begin in range(0, len(deletes), _AT_ONCE):
                await self._write(session, {"delete": collection, "deletes": deletes[begin : begin + _AT_ONCE]})
            for documents, _ in cut(changes.reload):
                await self._write(session, {"update": collection, "updates": list(map(_replacement, documents))})

    async def _write(self, session: ReservedSession, command: Mapping[str, Any]) -> None:
        options = {"bypassDocumentValidation": True} if "delete" not in command else {}
        await session.write_alone(self._namespace.db, {**command, **options, "writeConcern": LOCAL_WRITE_CONCERN})


def _replacement(document: bytes) -> dict[str, Any]:
    query = raw_document(one_of([document]))
    return {"q": {"_id": query}, "u": [{"$replaceWith": {"$literal": raw_document(document)}}], "upsert": True}


class CollectionReceipt:
    """One attempt to receive a collection.

    Args:
        collection: the collection on the donor.

    Attributes:
        uuid: the UUID of the copy.
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

        Raises InvalidUUID if another collection of that name exists, and NamespaceNotFound if the donor has dropped it.
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
        indexes = local_collections.specifications(moved.indexes, moved.options)
        await local_collections.create_indexes(mongod, namespace, indexes)
