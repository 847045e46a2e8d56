"""A collection on a real mongod, whose range is pulled by a simulated recipient."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any
from uuid import uuid4

import bson
import trio
from bson.binary import Binary
from bson.int64 import Int64
from bson.max_key import MaxKey
from bson.min_key import MinKey
from bson.timestamp import Timestamp

from shardwright.daemon.sidecar.mongod import LocalMongod
from shardwright.shardd.local_mongod.local_collections import describe
from shardwright.shardd.migration.donor.clone_source import CloneSource, TransferredMods
from shardwright.sharding.chunks import ChunkRange
from shardwright.sharding.key_order import encode_key
from shardwright.sharding.namespace import Namespace
from shardwright.sharding.shard_key import ShardKeyPattern
from shardwright.wire import rawbson
from tests.shardd.lone_mongod import TEST_SECONDS_MAX, LoneMongod

Document = dict[str, Any]

LONG = 9_000_000
"""Two strings of this length do not fit into one oplog entry."""


def whole(*fields: str) -> tuple[Document, Document]:
    """The bounds of all values of a shard key."""
    return {name: MinKey() for name in fields}, {name: MaxKey() for name in fields}


class World:
    """The collection, its shard key, and the range that moves."""

    def __init__(
        self, mongod: LocalMongod, namespace: Namespace, key: Mapping[str, Any], low: Document, high: Document
    ) -> None:
        self.mongod = mongod
        self.namespace = namespace
        self.pattern = ShardKeyPattern.from_mapping(key)
        self.range = ChunkRange.of(self.pattern, rawbson.encode_document(low), rawbson.encode_document(high))
        self.observed: list[Document] = []

    async def command(self, body: Mapping[str, Any]) -> Document:
        """Run a command on the database, as a client would; failed items raise."""
        return await self.mongod.write(self.namespace.db, body)

    async def insert(self, *documents: Mapping[str, Any], **options: object) -> Document:
        """Insert documents."""
        return await self.command({"insert": self.namespace.collection, "documents": list(documents), **options})

    async def update(self, query: Mapping[str, Any], change: Mapping[str, Any], **options: object) -> Document:
        """Update the first document that matches."""
        update = {"q": query, "u": change}
        return await self.command({"update": self.namespace.collection, "updates": [update], **options})

    async def delete(self, query: Mapping[str, Any], **options: object) -> Document:
        """Delete the first document that matches."""
        delete = {"q": query, "limit": 1}
        return await self.command({"delete": self.namespace.collection, "deletes": [delete], **options})

    async def source(self, **options: Any) -> CloneSource:  # noqa: ANN401 - whatever CloneSource takes
        """Create a source, without starting it."""
        described = await describe(self.mongod, self.namespace)
        assert described is not None
        assert described.uuid is not None
        return CloneSource(
            self.mongod,
            self.namespace,
            described.uuid,
            self.pattern,
            self.range,
            "from_to_1",
            observe=lambda entry: self.observed.append(bson.decode(entry, codec_options=rawbson.VALUE_CODEC)),
            **options,
        )

    async def documents(self) -> dict[bytes, bytes]:
        """The documents in the range, by the encoded ``_id``."""
        cursor = (await self.command({"find": self.namespace.collection}))["cursor"]
        found = [rawbson.encode_document(document) for document in cursor["firstBatch"]]
        while cursor["id"]:
            more = {"getMore": Int64(cursor["id"]), "collection": self.namespace.collection}
            cursor = (await self.command(more))["cursor"]
            found += [rawbson.encode_document(document) for document in cursor["nextBatch"]]
        return {
            id_of(document): document
            for document in found
            if self.range.contains_key(self.pattern.key_bytes_of_document(document))
            or self.pattern.key_bytes_of_document(document) == self.pattern.global_max_bytes() == self.range.max_key
        }

    async def now(self) -> Timestamp:
        """The time of the newest oplog entry."""
        time: Timestamp = (await self.mongod.command("admin", {"ping": 1}))["operationTime"]
        return time


class Transaction:
    """A transaction of a client, or of a retryable internal session if ``lsid`` has fields besides ``id``."""

    def __init__(self, world: World, **lsid: object) -> None:
        self._world = world
        self._fields: Document = {
            "lsid": {"id": Binary.from_uuid(uuid4()), **lsid},
            "txnNumber": Int64(0),
            "autocommit": False,
        }
        self._options: Document = {"startTransaction": True}
        self._has_statements = bool(lsid)
        self._statement = 0

    @property
    def fields(self) -> Document:
        """The session and transaction fields of the next statement."""
        options, self._options = self._options, {}
        if self._has_statements:
            options["stmtId"] = self._statement
            self._statement += 1
        return {**self._fields, **options}

    async def commit(self) -> None:
        """Commit it, unprepared."""
        await self._finish({"commitTransaction": 1})

    async def prepare(self) -> Timestamp:
        """Prepare it; returns the time to commit it at."""
        time: Timestamp = (await self._finish({"prepareTransaction": 1}))["prepareTimestamp"]
        return time

    async def commit_prepared(self, time: Timestamp) -> None:
        """Commit it after it was prepared."""
        await self._finish({"commitTransaction": 1, "commitTimestamp": time})

    async def abort(self) -> None:
        """Abort it."""
        await self._finish({"abortTransaction": 1})

    async def _finish(self, command: Document) -> Document:
        return await self._world.mongod.write("admin", {**command, **self._fields})


class Recipient:
    """The documents that a recipient would have.

    Args:
        same: maps ids that the collection considers equal to equal keys.
    """

    def __init__(self, same: Callable[[bytes], bytes] = lambda key: key) -> None:
        self.documents: dict[bytes, bytes] = {}
        self.position = Timestamp(0, 0)
        self._same = same

    async def clone(self, source: CloneSource) -> None:
        """Pull all clone batches; documents that exist already must not be cloned again."""
        while not source.is_clone_exhausted:
            for document in documents_of(await source.next_clone_batch()):
                key = self._same(id_of(document))
                assert key not in self.documents
                self.documents[key] = document

    async def catch_up(self, world: World, source: CloneSource) -> None:
        """Apply everything that happened up to now."""
        await source.wait_followed(await world.now())
        while True:
            mods = await source.next_mods()
            self.apply(mods)
            if not mods.size:
                return

    def apply(self, mods: TransferredMods) -> None:
        """Apply one batch of modifications."""
        for identity in mods.deleted:
            self.documents.pop(self._same(encode_key(identity)), None)
        for document in mods.reload:
            self.documents[self._same(id_of(document))] = document
        assert mods.position >= self.position
        self.position = mods.position


def documents_of(array: memoryview) -> list[bytes]:
    """The documents of a raw array."""
    return rawbson.array_documents(bytes(array), (rawbson.ARRAY, 0, 0, len(array)))


def id_of(document: bytes) -> bytes:
    """The ``_id`` of a document, equal for ids that MongoDB considers equal."""
    span = rawbson.find(document, b"_id")
    assert span is not None
    return encode_key(rawbson.from_elements(document[span[1] : span[3]]))


def in_world(
    lone: LoneMongod,
    test: Callable[[World], Awaitable[None]],
    *,
    db: str,
    key: Mapping[str, Any],
    low: Document,
    high: Document,
    options: Mapping[str, Any] | None = None,
) -> None:
    """Run a test with a new collection that has an index on a shard key."""

    async def main() -> None:
        with trio.fail_after(TEST_SECONDS_MAX):
            async with lone.local() as mongod:
                world = World(mongod, Namespace(db, "c"), key, low, high)
                await world.command({"dropDatabase": 1})
                await world.command({"create": "c", **(options or {})})
                await world.command({"create": "other"})
                index = {"key": key, "name": "shard key", "collation": {"locale": "simple"}}
                await world.command({"createIndexes": "c", "indexes": [index]})
                await test(world)

    trio.run(main)
