"""``split`` and ``mergeChunks`` of a collection that is given another epoch at the same moment."""

from dataclasses import replace
from typing import Any, cast

import bson
import pytest
import trio
from bson.objectid import ObjectId

from shardwright.router.commands.chunks import merge_chunks, split
from shardwright.router.operations.operation import Operation
from shardwright.router.placement.routing_info import CollectionRouting
from shardwright.router.sending.shard_sender import ShardSender
from shardwright.sharding.routing_table import RoutingTable
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.message import OpMsg, op_msg
from shardwright.wire.request import Request
from tests.router.operations.fake_router import Answer, FakeRouter
from tests.router.writes.builders import NAMESPACE, table

NEW_EPOCH = ObjectId("64b000000000000000000002")
STALE = {"ok": 0.0, "code": 150, "codeName": "StaleEpoch", "errmsg": "the epoch has changed"}

COMMANDS = [
    pytest.param({"split": NAMESPACE, "middle": {"k": 5}}, split, id="split"),
    pytest.param({"mergeChunks": NAMESPACE, "bounds": [{"k": 0}, {"k": 20}]}, merge_chunks, id="mergeChunks"),
]


class ChunkRouter(FakeRouter):
    """A router that reads routing without creating a database, and whose commands can be given as dicts."""

    command = ShardSender.command

    async def collection(self, namespace: str, *, create_database: bool = False) -> CollectionRouting:
        assert not create_database
        return await super().collection(namespace, create_database=True)

    def forget_collection(self, namespace: str) -> None:
        self.collections.pop(namespace, None)


def tables() -> list[RoutingTable]:
    """The table before and after."""
    before = table({"k": 1}, [{"k": 0}, {"k": 10}, {"k": 20}], ("west", "east", "east", "west"))
    return [before, before.with_collection(replace(before.collection, epoch=NEW_EPOCH))]


def operation(router: FakeRouter, command: dict[str, Any]) -> Operation:
    request = Request(OpMsg(op_msg(bson.encode({**command, "$db": "admin"}), request_id=1)))
    return Operation(cast("Any", router), cast("Any", None), request)


@pytest.mark.parametrize(("command", "run"), COMMANDS)
def test_the_change_is_repeated(command: dict[str, Any], run: Any) -> None:  # noqa: ANN401 - a handler
    def answer(shard: str, received: Request) -> Answer:
        return {"ok": 1.0} if received.get(b"epoch") == NEW_EPOCH else STALE

    router = ChunkRouter(tables(), answer)
    assert trio.run(run, operation(router, command)) == {}
    assert [shard for shard, _ in router.sent] == ["east", "east"]
    assert NAMESPACE not in router.collections


@pytest.mark.parametrize(("command", "run"), COMMANDS)
def test_the_error_of_the_last_attempt_is_reported(command: dict[str, Any], run: Any) -> None:  # noqa: ANN401
    router = ChunkRouter(tables(), lambda shard, received: STALE)
    with pytest.raises(CommandError) as failed:
        trio.run(run, operation(router, command))
    assert (failed.value.code, failed.value.message) == (ErrorCode.StaleEpoch, "the epoch has changed")
    assert NAMESPACE not in router.collections
