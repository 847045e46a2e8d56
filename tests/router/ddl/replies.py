"""Replies of shards for the tests of this folder."""

from typing import Any

import bson
from bson.timestamp import Timestamp

from shardwright.router.replies.shard_reply import ShardReply
from shardwright.wire.errors import CommandError
from shardwright.wire.message import op_msg


def succeeded(shard_id: str, **fields: Any) -> ShardReply:  # noqa: ANN401 - any BSON value
    """A reply with ``ok: 1`` and the fields that end every reply."""
    times = {"$clusterTime": {"clusterTime": Timestamp(5, 1)}, "operationTime": Timestamp(5, 1)}
    return _reply(shard_id, {**fields, "ok": 1.0, **times})


def failed(shard_id: str, code: int, message: str, **fields: Any) -> ShardReply:  # noqa: ANN401 - any BSON value
    """A reply with ``ok: 0``."""
    return _reply(shard_id, {**CommandError(code, message).reply(), **fields, "operationTime": Timestamp(5, 1)})


def _reply(shard_id: str, document: dict[str, Any]) -> ShardReply:
    return ShardReply(shard_id, f"{shard_id}.example:27018", op_msg(bson.encode(document), request_id=1))
