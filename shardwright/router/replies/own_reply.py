"""The router's own replies, which end with the newest times that it knows."""

from typing import Any, TypeAlias

from shardwright.sharding.clock import VectorClock, signed_cluster_time
from shardwright.sharding.timestamps import unpack_timestamp
from shardwright.wire.errors import CommandError
from shardwright.wire.message import reply, reply_document
from shardwright.wire.rawbson import encode_elements, from_elements

Reply: TypeAlias = bytes | dict[str, Any] | None
"""A whole frame that answers the request, a document to be framed (``ok: 1`` is added), or nothing more to send."""


def gossip(clock: VectorClock) -> dict[str, Any]:
    """The last fields of such replies; empty while no time is known."""
    cluster_time = clock.time.cluster_time
    if not cluster_time:
        return {}
    newest = unpack_timestamp(cluster_time)
    return {"$clusterTime": signed_cluster_time(newest), "operationTime": newest}


def framed_error(request_id: int, error: CommandError, clock: VectorClock) -> bytes:
    """The frame of an ``ok: 0`` reply.

    Args:
        request_id: of the answered request.
        error: why it failed.
        clock: the source of the times.
    """
    return reply_document(request_id, {**error.reply(), **gossip(clock)})


def raw_reply(request_id: int, elements: bytes, clock: VectorClock) -> bytes:
    """The frame of a successful reply whose content is already raw BSON.

    Args:
        request_id: of the answered request.
        elements: raw elements, before ``ok`` and the times.
        clock: the source of the times.
    """
    trailer = encode_elements({"ok": 1.0, **gossip(clock)})
    return reply(request_id, from_elements(elements + trailer))
