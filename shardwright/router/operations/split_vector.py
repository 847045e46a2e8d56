"""Determination of split keys for a range of a collection, by the shard that owns the range."""

from typing import Any

import bson

from shardwright.router.operations.operation import Operation
from shardwright.router.operations.scatter import send_to_one
from shardwright.router.placement.stale_routing import StaleRoutingError
from shardwright.sharding.routing_table import RoutingTable
from shardwright.wire.frames import next_request_id
from shardwright.wire.message import op_msg
from shardwright.wire.rawbson import append, encode_document, raw_document


async def split_vector(
    operation: Operation,
    table: RoutingTable,
    shard_id: str,
    low: bytes,
    high: bytes,
    **how: Any,  # noqa: ANN401 - options of the command
) -> list[bytes]:
    """Return the keys that the shard's ``splitVector`` finds between two bounds, in order.

    Args:
        shard_id: the owner of the range.
        low, high: bounds of the range, shard key documents.
        how: ``force: True`` for one key in the middle, or ``maxChunkSizeBytes`` for keys half that size apart.

    Raises:
        CommandError: StaleConfig; or the shard's error.
    """
    question = bson.encode(
        {
            "splitVector": str(table.namespace),
            "keyPattern": raw_document(table.key_pattern.document),
            "min": raw_document(low),
            "max": raw_document(high),
            **how,
            "$db": "admin",
        }
    )
    frame = op_msg(append(question, table.shard_version_element(shard_id)), request_id=next_request_id())
    try:
        reply = await send_to_one(operation, shard_id, frame, may_repeat=True)
    except StaleRoutingError as stale:  # the chunk has just changed, so the choice of the range is outdated, too
        raise stale.error from stale
    reply.raise_for_error()
    keys: list[dict[str, Any]] = reply.get(b"splitKeys", [])
    return [encode_document(key) for key in keys]
