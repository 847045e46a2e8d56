"""Requests and replies as they would come over the wire."""

from collections.abc import Mapping
from typing import Any

import bson

from shardwright.router.replies.shard_reply import ShardReply
from shardwright.wire.message import OpMsg, op_msg
from shardwright.wire.request import Request


def request(command: Mapping[str, Any], db: str = "test") -> Request:
    """The request that a client sends for a command."""
    return Request(OpMsg(op_msg(bson.encode({**command, "$db": db}), request_id=7)))


def shard_reply(document: Mapping[str, Any], shard_id: str = "shard0") -> ShardReply:
    """The reply of a shard."""
    return ShardReply(shard_id, f"{shard_id}.example:1", op_msg(bson.encode(document), request_id=8, response_to=7))


def cursor_reply(
    documents: list[dict[str, Any]], cursor_id: int = 0, shard_id: str = "shard0", batch: str = "firstBatch"
) -> ShardReply:
    """The reply of a shard to a command that opens or reads a cursor."""
    cursor = {batch: documents, "id": bson.Int64(cursor_id), "ns": "test.c"}
    return shard_reply({"cursor": cursor, "ok": 1.0}, shard_id)
