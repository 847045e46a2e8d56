"""The check of a database or one collection (``_shardsvrCheckMetadataConsistency`` on the primary shard).

It excludes DDL operations of the database. Chunks may move meanwhile, so differences that a move can cause are not
reported.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

from bson.binary import Binary

from shardwright.shardd.consistency.index_differences import index_differences
from shardwright.shardd.consistency.option_differences import option_differences
from shardwright.shardd.context.other_shards import all_shard_ids, send_to_shards
from shardwright.shardd.context.shard_context import ShardContext
from shardwright.sharding.catalog.collection_entry import CollectionEntry
from shardwright.sharding.catalog.reads import find_in_snapshot
from shardwright.sharding.consistency import Inconsistency, RangeCheck, namespace_of
from shardwright.wire.rawbson import decode_document, raw_document


@dataclass(frozen=True, slots=True)
class _Checked:
    """A sharded collection with its catalog entries and their check."""

    entry: CollectionEntry
    chunks: list[Mapping[str, Any]]
    has_routing_table: bool
    found: list[dict[str, Any]]

    @property
    def owners(self) -> frozenset[str]:
        """The shards that own chunks."""
        return frozenset(str(chunk["shard"]) for chunk in self.chunks if "shard" in chunk)

    def chunks_elsewhere(self, shards: Collection[str]) -> Iterator[dict[str, Any]]:
        """Yield an inconsistency for each chunk on an unknown shard."""
        about = {"collectionUUID": Binary.from_uuid(self.entry.uuid)}
        for chunk in self.chunks:
            if chunk.get("shard") not in shards:
                yield Inconsistency.ChunkOnUnknownShard.document(str(self.entry.namespace), **about, chunk=chunk)

    def for_participants(self) -> dict[str, Any]:
        """Return the fields that participants compare their local collections with."""
        entry = self.entry
        return {
            "ns": str(entry.namespace),
            "uuid": Binary.from_uuid(entry.uuid),
            "key": raw_document(entry.key.document),
            "owners": sorted(self.owners),
            "hasRoutingTable": self.has_routing_table,
        }


async def check_database(context: ShardContext, db: str, collection: str, *, indexes: bool) -> list[dict[str, Any]]:
    """Return the inconsistencies of a database, sorted by namespace.

    Args:
        context: the context of the database's primary shard, which is this one.
        collection: the only collection to check; empty for all.
        indexes: whether to compare the indexes of the shards that own chunks.

    Raises:
        CommandError: LockBusy, a DDL operation takes too long; or a shard or the config servers could not be reached.
    """
    async with context.ddl_locks.hold_all([db]):
        # A shard may be added during these reads, or removed once it has no chunks.
        before = await all_shard_ids(context)
        checked = [await _check_catalog(context, entry) for entry in await _sharded(context, db, collection)]
        participate: dict[str, Any] = {
            "_shardsvrCheckMetadataConsistencyParticipant": collection or 1,
            "primaryShardId": context.require_identity().shard_name,
            "collections": [each.for_participants() for each in checked],
        }
        shards = await all_shard_ids(context)
        replies = await send_to_shards(context, shards, db, participate)
    found = list(chain.from_iterable(each.found for each in checked))
    found += chain.from_iterable(each.chunks_elsewhere({*before, *shards}) for each in checked)
    found += chain.from_iterable(reply["inconsistencies"] for reply in replies.values())
    for each in checked:
        found += option_differences(each.entry, _of_shards("options", each, replies))
        if indexes:
            found += index_differences(str(each.entry.namespace), _of_shards("indexes", each, replies))
    return sorted(found, key=namespace_of)


async def _sharded(context: ShardContext, db: str, collection: str) -> list[CollectionEntry]:
    # The slash is the character after the dot, so it bounds all names with the prefix.
    names = f"{db}.{collection}" if collection else {"$gte": f"{db}.", "$lt": f"{db}/"}
    found = await (await context.catalog()).find("collections", {"_id": names}, sort={"_id": 1})
    decoded: list[dict[str, Any]] = [decode_document(document) for document in found]
    return [CollectionEntry.from_document(document) for document in decoded]


async def _check_catalog(context: ShardContext, entry: CollectionEntry) -> _Checked:
    catalog = await context.catalog()
    check = RangeCheck(str(entry.namespace), entry.uuid, entry.key)
    about, by_bound = {"uuid": Binary.from_uuid(entry.uuid)}, {"min": 1}
    raw_chunks = await catalog.read(find_in_snapshot("chunks", about, sort=by_bound))
    chunks: list[Mapping[str, Any]] = [decode_document(document) for document in raw_chunks]
    raw_zones = await catalog.find("tags", {"ns": str(entry.namespace)}, sort=by_bound)
    zones: list[Mapping[str, Any]] = [decode_document(document) for document in raw_zones]
    found = list(check.chunks(chunks))
    return _Checked(entry, chunks, not found, [*found, *check.zones(zones)])


def _of_shards(what: str, checked: _Checked, replies: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the indexes or options that the owners of a collection replied, by shard."""
    name = str(checked.entry.namespace)
    return {shard: reply[what][name] for shard, reply in replies.items() if name in reply[what]}
