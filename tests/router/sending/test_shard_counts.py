"""Counts of requests by shard."""

import bson

from shardwright.daemon.operation_metrics import OperationMetrics
from shardwright.router.replies.shard_reply import ShardReply
from shardwright.router.sending.shard_counts import (
    NOT_PRIMARY,
    OTHER,
    STALE,
    UNREACHABLE,
    ShardCounts,
    durations,
    transferred,
)
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.message import reply


def reply_of(shard: str, **fields: object) -> ShardReply:
    return ShardReply(shard, f"{shard}:1", reply(1, bson.encode(fields)))


def test_both_ways_count_as_requests_to_a_shard() -> None:
    counts, operations = ShardCounts(), OperationMetrics("x", ["find"])
    answer = reply_of("a", ok=1)
    counts.note_reply(answer, 100, 0.0)
    operations.observe_on("a", "find", 0.002, 10, 20)
    statistics = counts.statistics(operations, ("a", "b"))
    assert sum(statistics["a"].buckets) == 2
    assert sum(statistics["b"].buckets) == 0
    assert set(durations(statistics)) == {("a",), ("b",)}
    assert transferred(statistics) == {
        ("a", "sent"): 110,
        ("a", "received"): len(answer.frame) + 20,
        ("b", "sent"): 0,
        ("b", "received"): 0,
    }


def test_errors_have_kinds_from_the_start() -> None:
    counts = ShardCounts()
    for code in (ErrorCode.StaleConfig, ErrorCode.NotWritablePrimary, ErrorCode.BadValue, ErrorCode.BadValue):
        counts.note_reply(reply_of("a", ok=0, code=int(code), errmsg="x"), 1, 0.0)
    counts.note_error("a", UNREACHABLE)
    errors = counts.errors(("a", "b"))
    assert {kind: number for (shard, kind), number in errors.items() if shard == "a"} == {
        STALE: 1,
        NOT_PRIMARY: 1,
        OTHER: 2,
        UNREACHABLE: 1,
    }
    assert sum(number for (shard, _), number in errors.items() if shard == "b") == 0
    assert len(errors) == 8
