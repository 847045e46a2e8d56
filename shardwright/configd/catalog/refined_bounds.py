"""Extending the bounds of chunks and zones after the shard key of their collection has been refined."""

from shardwright.configd.catalog.catalog import Catalog
from shardwright.sharding.catalog.collection_entry import CollectionEntry
from shardwright.sharding.refined_key import bounds_to_refine, chunk_update, chunks_to_refine, zone_update
from shardwright.sharding.shard_key import ShardKeyPattern


async def refine_zones(catalog: Catalog, entry: CollectionEntry) -> None:
    """Extend the bounds of a collection's zones that are not yet, one by one; errors as `Catalog.insert`.

    Whatever changes zones has to do this first if the entry has the mark.
    """
    if entry.refined_from is not None:
        zones = {"ns": str(entry.namespace), **bounds_to_refine(entry.key)}
        old = ShardKeyPattern.from_mapping(entry.refined_from)
        await catalog.update_many("tags", zones, zone_update(old, entry.key))


async def refine_chunks(catalog: Catalog, entry: CollectionEntry) -> None:
    """As `refine_zones`, of its chunks."""
    if entry.refined_from is not None:
        old = ShardKeyPattern.from_mapping(entry.refined_from)
        await catalog.update_many("chunks", chunks_to_refine(entry.uuid, entry.key), chunk_update(old, entry.key))
