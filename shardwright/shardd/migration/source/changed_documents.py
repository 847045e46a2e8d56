"""Reading the newest versions of documents whose ids are known."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

from bson.binary import Binary

from shardwright.daemon.sidecar.mongod import LocalMongod
from shardwright.shardd.local_mongod.raw_cursor import RawCursor
from shardwright.sharding.chunks import ChunkRange
from shardwright.sharding.namespace import Namespace
from shardwright.sharding.shard_key import ShardKeyPattern
from shardwright.wire import rawbson

_VALUE_AT: Final = 5
"""Where the value of an ``_id`` element begins: behind its type, its name and a zero."""


@dataclass(frozen=True, slots=True)
class Changes:
    """What became of some documents.

    Attributes:
        deleted: ids, as elements, under which nothing is in the range any longer.
        reload: the documents that are.
        unread: ids that were not looked up to the end, because the answer became too long.
    """

    deleted: list[bytes]
    reload: list[bytes]
    unread: set[bytes]


class ChangedDocuments:
    """Looks documents of one collection up by ``_id``, as a majority has them."""

    def __init__(
        self,
        mongod: LocalMongod,
        namespace: Namespace,
        collection_uuid: UUID,
        pattern: ShardKeyPattern,
        range: ChunkRange,
    ) -> None:
        self._mongod = mongod
        self._namespace = namespace
        self._collection_uuid = Binary.from_uuid(collection_uuid)
        self._pattern = pattern
        self._range = range

    async def read(self, elements: Collection[bytes]) -> Changes:
        """Look documents up.

        Under an id that is written differently, or that is the same by the collection's collation, another document may
        be found than the one of that id. It is reloaded, and the id itself counts as deleted, as what was there before
        it has to be. Deletions come first, and a document that comes after them is the newest; so either is right.

        Args:
            elements: ``_id`` elements.

        Raises:
            CommandError: the collection is another one, or ShardKeyNotFound for a document with an array as shard key.
            BackendError: mongod does not answer.
        """
        found: dict[bytes, bytes] = {}
        async with RawCursor.open(self._mongod, self._namespace) as cursor:
            batch = await cursor.find(self._arguments(elements))
            while True:
                for document in batch.documents():
                    identity = rawbson.find(document, b"_id")
                    assert identity is not None, "every document has an _id"
                    found[document[identity[1] : identity[3]]] = document
                # One answer of mongod, of 16 MB at the most, will do, if there is something to say by it.
                if not cursor.id or any(element in found for element in elements):
                    break
                batch = await cursor.more()
            is_complete = not cursor.id
        return self._judge(elements, found, is_complete=is_complete)

    def _arguments(self, elements: Collection[bytes]) -> Mapping[str, Any]:
        values = b"".join(
            [element[:1] + b"%d\0" % position + element[_VALUE_AT:] for position, element in enumerate(elements)]
        )
        wanted = rawbson.wrap_value(rawbson.ARRAY, rawbson.from_elements(values), b"$in")
        return {
            "filter": rawbson.raw_document(rawbson.wrap_value(rawbson.OBJECT, wanted, b"_id")),
            "collectionUUID": self._collection_uuid,
            "batchSize": len(elements) + 1,  # one more than there can be, so that the cursor ends with the batch
            "readConcern": {"level": "majority"},
        }

    def _judge(self, elements: Collection[bytes], found: Mapping[bytes, bytes], *, is_complete: bool) -> Changes:
        key_of, is_inside = self._pattern.key_bytes_of_document, self._range.contains_key
        inside = {element: document for element, document in found.items() if is_inside(key_of(document))}
        if is_complete:
            unread: set[bytes] = set()
        else:
            unread = {element for element in elements if element not in found}
        deleted = [element for element in elements if element not in inside and element not in unread]
        return Changes(deleted, list(inside.values()), unread)
