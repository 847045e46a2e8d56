"""Resolution of ``find``, ``bounds`` or ``middle`` to a chunk."""

from shardwright.router.replies.reply_builder import PlainError
from shardwright.sharding.bson_text import document_text
from shardwright.sharding.routing_table import RoutedChunk, RoutingTable
from shardwright.sharding.targeting.exact_key import exact_shard_key


def chunk_of_query(table: RoutingTable, query: bytes) -> RoutedChunk:
    """Return the chunk of the shard key in a query.

    Raises:
        PlainError: the query does not contain a full shard key.
    """
    key = exact_shard_key(query, table.key_pattern)
    if key is None:
        raise PlainError(f"no shard key found in chunk query {document_text(query)}")
    return table.chunk_for_key(table.key_pattern.key_bytes(key))


def chunk_of_middle(table: RoutingTable, middle: bytes) -> tuple[RoutedChunk, bytes]:
    """Return the chunk to split at a key, and the key with its fields in the pattern's order.

    Raises:
        PlainError: it is not a key of this collection, or already a bound.
    """
    key = table.key_pattern.normalize(middle)
    if key is None:
        raise PlainError(
            f"new split key {document_text(middle)} is not valid for shard key pattern {table.key_pattern}"
        )
    key_bytes = table.key_pattern.key_bytes(key)
    chunk = table.chunk_for_key(key_bytes)
    if key_bytes in (chunk.min_key, chunk.max_key):
        raise PlainError(
            f"new split key {document_text(key)} is a boundary key of existing chunk "
            f"[{document_text(chunk.min)},{document_text(chunk.max)})"
        )
    return chunk, key


def chunk_of_bounds(table: RoutingTable, bounds: list[bytes]) -> RoutedChunk:
    """Return the chunk with exactly these two bounds.

    Raises:
        PlainError: the bounds are not keys of this collection, or no chunk has them.
    """
    low, high = checked_bounds(table, bounds)
    encode = table.key_pattern.key_bytes
    chunk = table.chunk_for_key(encode(low))
    if (chunk.min_key, chunk.max_key) != (encode(low), encode(high)):
        raise PlainError(f"no chunk found with the shard key bounds [{document_text(low)}, {document_text(high)})")
    return chunk


def checked_bounds(table: RoutingTable, bounds: list[bytes]) -> tuple[bytes, bytes]:
    """Return two bounds as shard key documents with the fields in the pattern's order.

    Raises:
        PlainError: they are not keys of this collection.
    """
    low, high = (table.key_pattern.normalize(bound) for bound in bounds)
    if low is None or high is None:
        raise PlainError(
            f"shard key bounds [{document_text(bounds[0])},{document_text(bounds[1])}) are not valid for shard key "
            f"pattern {table.key_pattern}"
        )
    return low, high
