"""Writing the copy of one unsharded collection: documents of the clone, then changes.

Most collections are written in transactions, as ranges are (`shardd.migration.recipient.range_writer`). mongod allows
none on capped and system collections. These are written by retryable writes of the same sessions, which change streams
leave out too, and in an order that keeps that of a capped collection.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from shardwright.daemon.sidecar.mongod import LocalMongod
from shardwright.shardd.local_mongod.empty_timestamps import restoring_updates
from shardwright.shardd.local_mongod.reserved_sessions import ReservedSession, ReservedSessions
from shardwright.shardd.local_mongod.write_concern import LOCAL_WRITE_CONCERN
from shardwright.shardd.migration.database.collection_source import CollectionChanges
from shardwright.shardd.migration.recipient.clone import cut
from shardwright.shardd.migration.recipient.range_writer import RangeWriter
from shardwright.shardd.migration.recipient.request import ReceiveRequest
from shardwright.shardd.range_deleter.batches import one_of
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.rawbson import raw_document

_AT_ONCE: Final = 1_000


class CopyWriter(RangeWriter):
    """Writes in transactions.

    Args:
        mongod: the local mongod.
        sessions: the reserved sessions.
        request: the request to receive the collection.
    """

    writers: int = 2

    def __init__(self, mongod: LocalMongod, sessions: ReservedSessions, request: ReceiveRequest) -> None:
        super().__init__(mongod, request)
        self._sessions = sessions

    async def apply(self, changes: CollectionChanges) -> None:
        """Apply a batch of changes, possibly for a second time.

        Raises:
            CommandError: mongod refuses.
            BackendError: mongod does not answer.
        """
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
        """Insert the postponed documents, after all changes have been applied.

        Raises:
            CommandError: DuplicateKey, some still cannot be inserted.
            BackendError: mongod does not answer.
        """
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
        """Insert documents in their order, except those that a change has already brought; returns the others.

        Raises:
            CommandError: any error of an insert but DuplicateKey of the ``_id``.
            BackendError: mongod does not answer.
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
        """Apply a batch of changes, possibly for a second time: a document that is there keeps its place.

        Raises:
            CommandError: mongod refuses.
            BackendError: mongod does not answer.
        """
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
