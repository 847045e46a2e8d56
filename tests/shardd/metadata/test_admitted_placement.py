"""An operation keeps the placement by which it was admitted, whatever its shard forgets meanwhile."""

from typing import Any, cast

import bson
import pytest
import trio

from shardwright.shardd.metadata.namespace_state import AdmittedPlacement, NamespaceState
from shardwright.shardd.operations.sharded_operations import SHARDED_OPERATIONS, ShardedOperation
from shardwright.sharding.shard_key import ShardKeyPattern
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.message import OpMsg, op_msg
from shardwright.wire.request import Request
from tests.sharding.targeting.placements import split_at

NOBODY: Any = cast("Any", None)


def test_a_command_on_a_sharded_collection_stays_one() -> None:
    state = NamespaceState("db.c", "s0")
    state.learn(split_at(ShardKeyPattern.from_mapping({"x": 1}), [bson.encode({"x": 0})]))
    placement = AdmittedPlacement.of(state)
    state.forget()
    assert placement.table is not None
    assert placement.mutable_key is not None

    unique = {"createIndexes": "c", "indexes": [{"key": {"y": 1}, "name": "y_1", "unique": True}], "$db": "db"}
    request = Request(OpMsg(op_msg(bson.encode(unique), request_id=1)))
    operation = ShardedOperation(NOBODY, NOBODY, NOBODY, request, state, placement.table, placement.mutable_key)
    with pytest.raises(CommandError) as refusal:
        trio.run(SHARDED_OPERATIONS["createIndexes"], operation)
    assert refusal.value.code == ErrorCode.CannotCreateIndex
