"""Fields that only members of the cluster may send, from clients of an open cluster."""

from typing import Any

import bson
import pytest
import trio
from bson import Int64
from bson.timestamp import Timestamp

from shardwright.wire.message import OpMsg
from shardwright.wire.request import Request
from tests.router.passage_router import COLLECTION, PassageRouter, command, exchange, passage_router, usual_reply
from tests.router.writes.builders import NAMESPACE

TERM = {"term": Int64(1 << 40)}
LATER = Timestamp(2**32 - 1, 1)
SHARD_VERSION = {"e": bson.ObjectId(bytes(12)), "t": LATER, "v": LATER}


def answer(shard: str, request: Request) -> dict[str, Any]:
    """Open a cursor for each find, and continue it."""
    reply = usual_reply(request)
    if request.name == "find":
        reply["cursor"] |= {"id": Int64(77)}
    if request.name == "getMore":
        return usual_reply(request) | {"cursor": {"nextBatch": [{"_id": 1}], "id": Int64(77), "ns": NAMESPACE}}
    return reply


async def replies_to(router: PassageRouter, *commands: dict[str, Any]) -> list[dict[str, Any]]:
    """Send commands on one connection."""
    client, replies = await router.connect(), []
    for each in commands:
        received = await exchange(client, command(each))
        assert received is not None
        replies.append(bson.decode(OpMsg(received).body))
    return replies


def run(*commands: dict[str, Any]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the replies to commands, and the requests that shards received."""

    async def main() -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        async with passage_router() as router:
            router.answer = answer
            replies = await replies_to(router, *commands)
            return replies, [bson.decode(OpMsg(frame).body) for _, frame in router.sent]

    return trio.run(main)


FIND = {"find": COLLECTION, "filter": {"key": 1}}
FIND_ON_ALL = {"find": COLLECTION, "filter": {}, "batchSize": 1}
UPDATE = {"update": COLLECTION, "updates": [{"q": {"key": 1}, "u": {"$set": {"a": 1}}}]}
GET_MORE = {"getMore": Int64(1_000), "collection": COLLECTION, "batchSize": 1}


@pytest.mark.parametrize("opening", [FIND, FIND_ON_ALL], ids=["one shard", "all shards"])
def test_shards_receive_no_term(opening: dict[str, Any]) -> None:
    """A mongod that adopts a huge term cannot vote any more, and aborts."""
    committed = {"lastKnownCommittedOpTime": {"ts": LATER, "t": Int64(1 << 40)}}
    # Repeated, so that a passage that was learned from one of them would serve the next.
    get_mores = [GET_MORE | TERM | committed] * 3
    replies, received = run(*[opening | TERM] * 3, *get_mores)
    assert [each["ok"] for each in replies] == [1] * len(replies), replies
    assert {name for each in received for name in ("find", "getMore") if name in each} == {"find", "getMore"}
    assert not [each for each in received if "term" in each or "lastKnownCommittedOpTime" in each]


GENERIC = {
    "shardVersion": SHARD_VERSION,
    "databaseVersion": [1],
    "$configTime": LATER,
    "$topologyTime": LATER,
    "$audit": {"$impersonatedUsers": []},
    "$replData": 1,
    "$oplogQueryData": 1,
    "coordinator": True,
    "$fromSibling": {"user": "chief", "db": "admin"},
}


def test_generic_fields_of_members_are_dropped_as_by_mongos() -> None:
    plain: list[dict[str, Any]] = [FIND, FIND_ON_ALL, UPDATE, {"ping": 1}]
    _, wanted = run(*plain)
    replies, received = run(*(each | {name: value} for name, value in GENERIC.items() for each in plain))
    assert {each["ok"] for each in replies} == {1}, replies
    assert sorted(map(str, received)) == sorted(map(str, wanted * len(GENERIC)))


def test_fields_without_meaning_in_mongos_are_unknown() -> None:
    names = ("clientSession", "fromMigrate", "involvedNamespaces", "mayChangeOwner")
    replies, received = run(*(each | {name: True} for name in names for each in (FIND, UPDATE)))
    assert [each["code"] for each in replies] == [40415] * 8
    assert not received


def test_runtime_constants_are_refused_as_by_mongos() -> None:
    coded: dict[int, dict[str, Any]] = {
        51202: FIND,
        51195: UPDATE,
        51196: {"findAndModify": COLLECTION, "query": {"key": 1}, "remove": True},
        51143: {"aggregate": COLLECTION, "pipeline": [], "cursor": {}},
    }
    replies, received = run(*(each | {"runtimeConstants": {"localNow": 1}} for each in coded.values()))
    assert [each["code"] for each in replies] == [*coded]
    assert {each["errmsg"] for each in replies} == {"Cannot specify runtime constants option to a mongos"}
    assert not received
