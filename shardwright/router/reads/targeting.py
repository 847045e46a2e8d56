"""The shards that a read targets."""

from collections.abc import Mapping
from typing import Any

from bson.timestamp import Timestamp

from shardwright.router.placement.collection_routing import CollectionRouting
from shardwright.sharding.targeting.collation import effective, is_simple
from shardwright.sharding.targeting.past_placement import placement_at
from shardwright.sharding.targeting.targets import target_filter
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.rawbson import InvalidBSONError


def shards_for_read(
    routing: CollectionRouting,
    filter_document: bytes,
    collation: Mapping[str, Any] | None,
    time: Timestamp | None = None,
) -> tuple[str, ...]:
    """Return the shards that may hold matches of a filter, in order; the primary shard for an unsharded collection.

    Args:
        collation: the command's, None for the collection's default.
        time: of a snapshot, which targets the owners at that time.

    Raises:
        CommandError: InvalidBSON; StaleChunkHistory, the owners at that time are no longer known.
    """
    table = routing.table
    if table is None:
        return (routing.primary,)
    simple = is_simple(effective(collation, table.collection.default_collation))
    try:
        placement = table if time is None else placement_at(table, time)
        shards = target_filter(filter_document, placement, simple_collation=simple)
    except InvalidBSONError as error:
        raise CommandError(ErrorCode.InvalidBSON, str(error)) from error
    return tuple(shards) if len(shards) == 1 else tuple(sorted(shards))


def collation_unless_simple(
    routing: CollectionRouting, collation: Mapping[str, Any] | None
) -> Mapping[str, Any] | None:
    """Return the collation that applies to a sharded collection, None if it is the simple one."""
    default = None if routing.table is None else routing.table.collection.default_collation
    applied = effective(collation, default)
    return None if is_simple(applied) else applied
