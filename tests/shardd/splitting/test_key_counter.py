"""Samples give each chunk its share of reads and writes."""

from collections import Counter
from random import Random
from typing import Any, Final

import bson
import pytest
from bson.max_key import MaxKey
from bson.min_key import MinKey

from shardwright.shardd.splitting.key_statistics import KeyCounter, documents_in
from shardwright.sharding.key_statistics import Counts
from shardwright.wire.message import OpMsg, op_msg, reply_document
from shardwright.wire.request import Request
from tests.sharding.chunk_worlds import chunk, table_of

TABLE: Final = table_of(
    [
        chunk(MinKey(), 0, "a", 1, 0),
        chunk(0, 100, "a", 1, 1),
        chunk(100, 200, "b", 1, 2),
        chunk(200, MaxKey(), "a", 1, 3),
    ]
)
SHARD: Final = "a"
FOUND: Final = reply_document(1, {"cursor": {"firstBatch": [{"x": 1}, {"x": 2}], "id": 0, "ns": "d.c"}, "ok": 1.0})
WRITTEN: Final = reply_document(1, {"n": 3, "ok": 1.0})


def request(command: dict[str, Any]) -> Request:
    return Request(OpMsg(op_msg(bson.encode({**command, "$db": "d"}), request_id=1)))


def counted(counter: KeyCounter, command: dict[str, Any], reply: bytes, times: int) -> None:
    """Count operations, only a few of which are sampled."""
    sent = request(command)
    for _ in range(times):
        counter.remaining -= 1
        if counter.remaining <= 0:
            counter.sample(sent, reply, SHARD, TABLE)


def totals(counter: KeyCounter) -> dict[object, Counts]:
    return {bson.decode(each.min)["x"]: each.counts for each in counter.take()}


def about(number: int, expected: int) -> bool:
    return 0.8 * expected < number < 1.2 * expected


@pytest.mark.parametrize(
    ("command", "reply", "chunk_min"),
    [
        ({"find": "c", "filter": {"x": 5}}, FOUND, 0),
        ({"aggregate": "c", "pipeline": [{"$match": {"x": 5}}, {"$sort": {"y": 1}}]}, FOUND, 0),
        ({"count": "c", "query": {"x": 250}}, WRITTEN, 200),
    ],
)
def test_reads(command: dict[str, Any], reply: bytes, chunk_min: int) -> None:
    counter = KeyCounter(Random(1))
    counted(counter, command, reply, 20_000)
    found = totals(counter)
    assert found.keys() == {chunk_min}
    assert about(found[chunk_min].reads, 20_000)
    assert found[chunk_min].writes == 0
    assert found[chunk_min].bytes == found[chunk_min].reads * len(reply)


@pytest.mark.parametrize(
    "command",
    [
        {"insert": "c", "documents": [{"x": 5}]},
        {"update": "c", "updates": [{"q": {"x": 5}, "u": {"$set": {"y": 1}}}]},
        {"delete": "c", "deletes": [{"q": {"x": 5}, "limit": 1}]},
        {"findAndModify": "c", "query": {"x": 5}, "remove": True},
    ],
)
def test_writes(command: dict[str, Any]) -> None:
    counter = KeyCounter(Random(1))
    counted(counter, command, WRITTEN, 20_000)
    found = totals(counter)
    assert found.keys() == {0}
    assert about(found[0].writes, 20_000)
    assert found[0].reads == 0
    assert found[0].documents == 3 * found[0].writes


def test_a_read_of_all_chunks_counts_for_one_of_this_shard_each_time() -> None:
    counter = KeyCounter(Random(1))
    counted(counter, {"find": "c", "filter": {}}, FOUND, 90_000)
    found = totals(counter)
    assert set(found) == {MinKey(), 0, 200}
    assert all(about(each.reads, 30_000) for each in found.values())


def test_a_range_counts_for_the_chunks_of_this_shard_in_it() -> None:
    counter = KeyCounter(Random(1))
    counted(counter, {"find": "c", "filter": {"x": {"$gt": 50, "$lt": 150}}}, FOUND, 20_000)
    assert set(totals(counter)) == {0}


def test_many_samples_make_the_gap_longer() -> None:
    counter = KeyCounter(Random(1))
    for _ in range(6_001):
        counter.remaining = 0
        counter.sample(request({"find": "c", "filter": {"x": 5}}), FOUND, SHARD, TABLE)
    before = totals(counter)[0].reads
    counter.sample(request({"find": "c", "filter": {"x": 5}}), FOUND, SHARD, TABLE)
    assert (before, totals(counter)[0].reads) == (600_100, 200)


def test_malformed_operations_and_those_without_a_key_are_left_out() -> None:
    counter = KeyCounter(Random(1))
    for command in ({"find": "c", "filter": 5}, {"insert": "c", "documents": [{"x": [1]}]}, {"update": "c"}):
        counter.sample(request(command), WRITTEN, SHARD, TABLE)
    assert totals(counter) == {}
    counter.is_enabled = False
    counter.sample(request({"find": "c"}), FOUND, SHARD, TABLE)
    assert totals(counter) == {}


def test_documents_of_long_replies_are_estimated() -> None:
    documents = [{"x": number, "text": "y" * 50} for number in range(1000)]
    reply = reply_document(1, {"cursor": {"firstBatch": documents, "id": 0, "ns": "d.c"}, "ok": 1.0})
    assert about(documents_in(reply), 1000)
    assert documents_in(FOUND) == 2
    assert documents_in(reply_document(1, {"ok": 1.0})) == 0


def test_all_chunks_of_a_range_are_chosen_alike() -> None:
    keys = [TABLE.chunk_between(b"", b"\xff", number / 400).min for number in range(400)]
    assert set(Counter(keys).values()) == {100}


@pytest.mark.parametrize(
    "command",
    [
        {"insert": "c", "documents": []},
        {"update": "c", "updates": []},
        {"delete": "c", "deletes": []},
        {"insert": "c", "documents": 1},
        {"insert": "c"},
        {"update": "c", "updates": [{"q": 1}]},
        {"find": "c", "filter": 1},
        {"aggregate": "c", "pipeline": [{"$match": 1}]},
        {"aggregate": "c", "pipeline": 1},
    ],
)
def test_what_mongod_refuses_does_no_harm(command: dict[str, Any]) -> None:
    refused = reply_document(1, {"ok": 0.0, "errmsg": "no", "code": 2})
    counter = KeyCounter(Random(1))
    counted(counter, command, refused, 1_000)
    assert sum(counts.documents for counts in totals(counter).values()) == 0
