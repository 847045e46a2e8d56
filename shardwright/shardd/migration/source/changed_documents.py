"""Reading the current versions of documents, given their ids."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

from bson.binary import Binary

from shardwright.daemon.sidecar.mongod import LocalMongod
from shardwright.shardd.local_mongod.cursors import migration_cursor
from shardwright.sharding.namespace import Namespace
from shardwright.wire import rawbson

_VALUE_AT: Final = 5
"""Offset of the value in an ``_id`` element: it follows the type, the name and a zero byte."""


@dataclass(frozen=True, slots=True)
class Changes:
    """The current state of some documents.

    Attributes:
        deleted: ids, as elements, under which there is no longer a document in the range.
        reload: the documents that are in the range.
        unread: ids that were not looked up because the reply became too long.
    """

    deleted: list[bytes]
    reload: list[bytes]
    unread: set[bytes]


class ChangedDocuments:
    """Looks up documents of one collection by ``_id``, with majority read concern.

    Args:
        mongod: the local mongod.
        namespace: the collection.
        collection_uuid: its UUID.
        is_inside: whether a raw document is in the range.
    """

    def __init__(
        self,
        mongod: LocalMongod,
        namespace: Namespace,
        collection_uuid: UUID,
        is_inside: Callable[[bytes], bool],
    ) -> None:
        self._mongod = mongod
        self._namespace = namespace
        self._collection_uuid = Binary.from_uuid(collection_uuid)
        self._is_inside = is_inside

    async def read(self, elements: Collection[bytes]) -> Changes:
        """Look documents up.

        The document found may have an ``_id`` that is equal to the one looked up but has other bytes (``1`` and
        ``1.0``, or by the collection's collation). It is reloaded, and the id looked up counts as deleted too, because
        its former document has to go. As deletions are applied first, the reloaded document survives.

        Args:
            elements: ``_id`` elements.

        Raises:
            CommandError: CollectionUUIDMismatch, or ShardKeyNotFound for a document with an array as shard key.
            BackendError: mongod does not answer.
        """
        found: dict[bytes, bytes] = {}
        async with migration_cursor(self._mongod, self._namespace, self._arguments(elements)) as cursor:
            async for batch in cursor:
                for document in batch.documents():
                    identity = rawbson.find(document, b"_id")
                    assert identity is not None, "every document has an _id"
                    found[document[identity[1] : identity[3]]] = document
                # A single reply of mongod, of 16 MB at most, is enough, provided that it settles at least one id.
                if any(element in found for element in elements):
                    break
        return self._changes_of(elements, found, is_complete=cursor.is_exhausted)

    def _arguments(self, elements: Collection[bytes]) -> Mapping[str, Any]:
        values = b"".join(
            [element[:1] + b"%d\0" % position + element[_VALUE_AT:] for position, element in enumerate(elements)]
        )
        wanted = rawbson.wrap_value(rawbson.ARRAY, rawbson.from_elements(values), b"$in")
        return {
            "filter": rawbson.raw_document(rawbson.wrap_value(rawbson.OBJECT, wanted, b"_id")),
            "collectionUUID": self._collection_uuid,
            "batchSize": len(elements) + 1,  # one more than the result can have, so that the cursor ends with the batch
            "readConcern": {"level": "majority"},
        }

    def _changes_of(self, elements: Collection[bytes], found: Mapping[bytes, bytes], *, is_complete: bool) -> Changes:
        inside = {element: document for element, document in found.items() if self._is_inside(document)}
        if is_complete:
            unread: set[bytes] = set()
        else:
            unread = {element for element in elements if element not in found}
        deleted = [element for element in elements if element not in inside and element not in unread]
        return Changes(deleted, list(inside.values()), unread)
