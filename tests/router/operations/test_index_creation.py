"""``createIndexes`` on shards that answer from a script."""

from typing import Any, cast

import bson
import pytest
import trio

from shardwright.router.commands.create_indexes import IndexCreation
from shardwright.router.operations.operation import Operation
from shardwright.wire.message import OpMsg, op_msg
from shardwright.wire.request import Request
from tests.router.operations.fake_router import Answer, FakeRouter
from tests.router.writes.builders import NAMESPACE, table

NAMES = ("a_1", "b_1")
BY_K = table({"k": 1}, [{"k": 0}], ("west", "east"))


def creation(router: FakeRouter) -> IndexCreation:
    indexes = [{"key": {name[0]: 1}, "name": name} for name in NAMES]
    command = {"createIndexes": "orders", "indexes": indexes, "$db": "shop"}
    request = Request(OpMsg(op_msg(bson.encode(command), request_id=1)))
    return IndexCreation(Operation(cast("Any", router), cast("Any", None), request))


def test_dropping_new_indexes_continues_when_one_of_them_is_gone(caplog: pytest.LogCaptureFixture) -> None:
    """East refuses what west has built; another client has dropped one of west's two indexes since."""
    left = set(NAMES)

    def answer(shard: str, received: Request) -> Answer:
        if received.name == "listIndexes":
            return {"cursor": {"id": 0, "ns": NAMESPACE, "firstBatch": []}, "ok": 1.0}
        if received.name == "createIndexes" and shard == "east":
            return {"ok": 0.0, "code": 11000, "codeName": "DuplicateKey", "errmsg": "duplicate"}
        if received.name == "createIndexes":
            left.discard("a_1")
            return {"numIndexesBefore": 1, "numIndexesAfter": 3, "ok": 1.0}
        dropped = received.get(b"index")
        if not left.issuperset([dropped] if isinstance(dropped, str) else dropped):
            return {"ok": 0.0, "code": 27, "codeName": "IndexNotFound", "errmsg": "index not found"}
        left.discard(dropped)
        return {"ok": 1.0}

    async def run() -> None:
        router = FakeRouter([BY_K], answer)
        routing = await router.collection(NAMESPACE, create_database=True)
        replies = await creation(router).attempt(routing)
        assert [reply.error.code for reply in replies if reply.error] == [11000]

    trio.run(run)
    assert left == set()
    assert not caplog.records
