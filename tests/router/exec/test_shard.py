"""The stage of one shard: documents for the router, and replies for a client."""

from typing import TYPE_CHECKING, Any, cast

import bson
import pytest

from shardwright.router.cursors.open_cursor import Cursor
from shardwright.router.exec.shard import ShardStage
from shardwright.router.exec.stage import IN_SESSION, ListStage
from shardwright.router.replies.shard_reply import ShardReply
from shardwright.sharding.clock import VectorClock
from shardwright.wire.errors import CommandError
from shardwright.wire.message import op_msg
from tests.router.exec.fakes import FakeSender, FakeShard, batch_of, cursor_of, get_more

if TYPE_CHECKING:
    from shardwright.router.sending.shard_sender import ShardSender

VERSIONED: dict[str, Any] = {
    "getMore": bson.Int64(5),
    "collection": "c",
    "lsid": {"id": b"x" * 16},
    "apiVersion": "1",
    "foo": 1,
}


def numbers(start: int, end: int) -> list[dict[str, Any]]:
    return [{"n": number} for number in range(start, end)]


def opened(shard: FakeShard, **how: Any) -> ShardStage:  # noqa: ANN401 - as ShardStage
    return ShardStage(cast("ShardSender", FakeSender([shard])), shard.opening, **how)


def decoded(documents: list[bytes]) -> list[dict[str, Any]]:
    return [bson.decode(document) for document in documents]


async def test_the_router_reads_documents_from_the_opening_reply_on() -> None:
    shard = FakeShard("a", numbers(0, 5), first=2)
    shard.documents_max = 2
    stage = opened(shard)
    assert not stage.is_exhausted
    batches = [decoded(await stage.next_batch(get_more())) for _ in range(4)]
    assert batches == [numbers(0, 2), numbers(2, 4), numbers(4, 5), []]
    assert stage.is_exhausted
    assert len(shard.asked) == 2


@pytest.mark.parametrize(
    ("how", "passed_on"),
    [
        ({}, {"lsid": {"id": b"x" * 16}, "apiVersion": "1"}),
        ({"passed_on": IN_SESSION}, {"lsid": {"id": b"x" * 16}}),
        ({"passed_on": ()}, {}),
    ],
)
async def test_a_get_more_has_the_fields_that_its_cursor_was_opened_with(
    how: dict[str, Any], passed_on: dict[str, Any]
) -> None:
    shard = FakeShard("a", numbers(0, 5))
    await opened(shard, **how).next_batch(get_more(command=VERSIONED))
    assert shard.asked == [{"getMore": 100, "collection": "c", **passed_on, "$db": "test"}]


@pytest.mark.parametrize(("how", "has_version"), [({}, True), ({"passed_on": IN_SESSION}, False)])
async def test_a_client_receives_whole_replies(how: dict[str, Any], has_version: bool) -> None:
    shard = FakeShard("a", numbers(0, 5), first=2)
    stage = opened(shard, **how)
    first = stage.first_reply(5)
    assert (batch_of(first), cursor_of(first)["id"]) == (numbers(0, 2), 5)
    last = await Cursor("test.c", stage, VectorClock()).next_batch(get_more(command=VERSIONED))
    assert (batch_of(last), cursor_of(last)["id"]) == (numbers(2, 5), 0)
    assert stage.is_exhausted
    [asked] = shard.asked
    assert (asked["foo"], "apiVersion" in asked) == (1, has_version)


async def test_an_error_in_place_of_a_cursor_is_raised_to_the_router_and_forwarded_to_a_client() -> None:
    refusal = op_msg(bson.encode({"ok": 0.0, "code": 2, "errmsg": "no"}), request_id=1)
    shard = FakeShard("a", ())
    shard.opening = ShardReply("a", shard.address, refusal)
    stage = opened(shard)
    assert (stage.remotes, stage.is_exhausted) == ((), False)
    with pytest.raises(CommandError, match="no"):
        await stage.next_batch(get_more())
    assert stage.first_reply(0) == refusal


async def test_the_error_of_a_write_concern_is_kept_for_the_reply() -> None:
    cursor = {"firstBatch": [], "id": bson.Int64(0), "ns": "test.c"}
    failed = {"code": 64, "errmsg": "waited"}
    reply = op_msg(bson.encode({"cursor": cursor, "writeConcernError": failed, "ok": 1.0}), request_id=1)
    shard = FakeShard("a", ())
    shard.opening = ShardReply("a", shard.address, reply)
    stage = opened(shard)
    assert await stage.next_batch(get_more()) == []
    written = ListStage(reply_elements=stage.reply_elements)
    frame = await Cursor("test.c", written, VectorClock()).next_batch(get_more())
    assert frame is not None
    assert bson.decode(frame[21:])["writeConcernError"] == failed
