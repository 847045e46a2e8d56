"""Points at which a shard splits a chunk."""

from typing import Any, cast

import bson
import pytest
import trio

from shardwright.shardd.commands.metadata_commands import split_chunk
from shardwright.wire.errors import CommandError
from shardwright.wire.message import OpMsg, op_msg
from shardwright.wire.request import Request


def test_a_point_that_is_not_a_hash_is_refused() -> None:
    command: dict[str, Any] = {"splitChunk": "shop.orders", "min": {"k": bson.MinKey()}, "max": {"k": bson.MaxKey()}}
    command |= {"keyPattern": {"k": "hashed"}, "splitKeys": [{"k": "a"}], "$db": "admin"}
    request = Request(OpMsg(op_msg(bson.encode(command), request_id=1)))
    with pytest.raises(CommandError) as raised:
        trio.run(split_chunk, cast("Any", None), request)
    assert raised.value.message == (
        'The split point { k: "a" } must be of type NumberLong for the hashed shard key { k: "hashed" }'
    )
