"""Comparison of one shard's collections with the catalog (``_shardsvrCheckMetadataConsistencyParticipant``)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple
from uuid import UUID

from bson.binary import Binary

from shardwright.shardd.consistency.orphan_check import orphans_without_task
from shardwright.shardd.context.shard_context import ShardContext
from shardwright.shardd.local_mongod import local_collections
from shardwright.sharding.catalog.reads import CatalogIsOlderError
from shardwright.sharding.consistency import Inconsistency
from shardwright.sharding.namespace import Namespace
from shardwright.sharding.resharding.participation import is_temporary
from shardwright.sharding.shard_key import ShardKeyPattern
from shardwright.wire.rawbson import decode_document
from shardwright.wire.transport.cursor import DecodedCursor

_NOT_COMPARED: Final = frozenset({"system.profile"})
"""Collections that are local to each shard."""


@dataclass(frozen=True, slots=True)
class ExpectedCollection:
    """A sharded collection in the catalog.

    Attributes:
        owners: the shards that own chunks.
        has_routing_table: whether its chunks are undamaged.
    """

    namespace: Namespace
    uuid: UUID
    pattern: ShardKeyPattern
    owners: frozenset[str]
    has_routing_table: bool

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> "ExpectedCollection":
        """Read the document sent by the primary shard of the database."""
        return cls(
            Namespace.parse(document["ns"]),
            UUID(bytes=bytes(document["uuid"])),
            ShardKeyPattern.from_mapping(document["key"]),
            frozenset(document["owners"]),
            bool(document["hasRoutingTable"]),
        )


class _Local(NamedTuple):
    """A collection of the local mongod."""

    uuid: UUID
    options: Mapping[str, Any]


class LocalCheck:
    """A check of this shard's part of a database.

    Attributes:
        indexes: the indexes of the sharded collections with chunks on this shard, by namespace.
        options: the options of the same collections.
    """

    def __init__(self, context: ShardContext, db: str) -> None:
        self._context = context
        self._db = db
        self._me = context.require_identity().shard_name
        self.found: list[dict[str, Any]] = []
        self.indexes: dict[str, list[dict[str, Any]]] = {}
        self.options: dict[str, Mapping[str, Any]] = {}

    async def run(self, expected: Sequence[ExpectedCollection], collection: str, primary_shard: str) -> None:
        """Compare the local collections with the catalog.

        Args:
            expected: the sharded collections of the database, or the one to check.
            collection: the only collection to check; empty for all.
            primary_shard: the database's primary shard, which has its unsharded collections.
        """
        local = await self._local_collections(collection)
        for each in expected:
            await self._check_sharded(each, local.get(each.namespace.collection))
        for name in sorted(set(local) - {each.namespace.collection for each in expected} - _NOT_COMPARED):
            if is_temporary(Namespace(self._db, name)):  # no operation reshards a collection of the database now
                self.found.append(Inconsistency.StrayTemporaryCollection.document(f"{self._db}.{name}", shard=self._me))
            elif self._me != primary_shard:
                about = {"shard": self._me, "localUUID": Binary.from_uuid(local[name].uuid)}
                self.found.append(Inconsistency.MisplacedCollection.document(f"{self._db}.{name}", **about))

    async def _local_collections(self, collection: str) -> dict[str, _Local]:
        wanted: dict[str, Any] = {"type": "collection", **({"name": collection} if collection else {})}
        listing = {"listCollections": 1, "filter": wanted}
        entries = await DecodedCursor(self._context.mongod.command, self._db, listing).all_documents()
        return {entry["name"]: _Local(UUID(bytes=bytes(entry["info"]["uuid"])), entry["options"]) for entry in entries}

    async def _check_sharded(self, expected: ExpectedCollection, local: _Local | None) -> None:
        if local is None:
            if self._me in expected.owners:
                self._report(Inconsistency.MissingLocalCollection, expected)
            return
        if local.uuid != expected.uuid:
            uuids = {"localUUID": Binary.from_uuid(local.uuid), "UUID": Binary.from_uuid(expected.uuid)}
            self.found.append(
                Inconsistency.CollectionUUIDMismatch.document(str(expected.namespace), shard=self._me, **uuids)
            )
            return
        indexes = await local_collections.list_indexes(self._context.mongod, expected.namespace)
        is_supported = any(expected.pattern.is_supported_by_index(index) for index in indexes)
        if self._me in expected.owners:
            self.indexes[str(expected.namespace)] = indexes
            self.options[str(expected.namespace)] = local.options
            if not is_supported:
                key = decode_document(expected.pattern.document)
                self._report(Inconsistency.MissingShardKeyIndex, expected, shardKeyPattern=key)
        if is_supported and expected.has_routing_table:
            await self._find_orphans(expected)

    async def _find_orphans(self, expected: ExpectedCollection) -> None:
        try:
            parts = await orphans_without_task(self._context, expected.namespace, expected.uuid)
        except CatalogIsOlderError as error:
            self._report(Inconsistency.ShardCatalogCacheCollectionMetadataMismatch, expected, reason=error.message)
            return
        for part in parts:
            self._report(Inconsistency.OrphanedDocuments, expected, range=part.to_document())

    def _report(self, kind: Inconsistency, expected: ExpectedCollection, **details: object) -> None:
        about = {"collectionUUID": Binary.from_uuid(expected.uuid), "shard": self._me}
        self.found.append(kind.document(str(expected.namespace), **about, **details))
