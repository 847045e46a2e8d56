"""A router with tracing: which operations are traced, what its shards receive, and that passages serve the others."""

import sys
from collections.abc import Iterator
from types import FrameType, SimpleNamespace
from typing import Any, cast

import pytest

from shardwright.daemon.tracing import TracingOptions
from shardwright.wire.message import OpMsg
from shardwright.wire.request import Request
from shardwright.wire.trace_context import TRACE_CONTEXT, TraceContext
from tests.otlp_collector import Collector, serving
from tests.router.passage_router import COLLECTION, PassageRouter, command, exchange, passage_router, times

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = f"00-{TRACE}-00f067aa0ba902b7-01"
UNSAMPLED = f"00-{TRACE}-00f067aa0ba902b7-00"
UNDERSTOOD = (TRACE_CONTEXT.decode(),)


@pytest.fixture
def collector() -> Collector:
    return Collector()


@pytest.fixture
def options(collector: Collector) -> Iterator[TracingOptions]:
    with serving(collector) as url:
        yield TracingOptions(url, "router.test:27017")


def sampled(options: TracingOptions, ratio: float) -> TracingOptions:
    return TracingOptions(options.endpoint, options.instance, ratio)


def find(key: int, **more: object) -> bytes:
    return command({"find": COLLECTION, "filter": {"key": key}, "limit": 1, "singleBatch": True, **more})


def contexts(router: PassageRouter) -> list[TraceContext | None]:
    """The trace in each request to a shard."""
    requests = [Request(OpMsg(frame)) for _, frame in router.sent]
    return [TraceContext.parse(each.get(TRACE_CONTEXT)) for each in requests]


async def test_passages_serve_what_is_not_traced(options: TracingOptions) -> None:
    async with passage_router(tracing=options, extensions=UNDERSTOOD) as router:
        client = await router.connect()
        for key in range(10):
            await exchange(client, find(key))
        assert router.taken == 8
        assert contexts(router) == [None] * 10


async def test_no_passage_takes_what_may_be_traced(options: TracingOptions, collector: Collector) -> None:
    async with passage_router(tracing=options, extensions=UNDERSTOOD) as router:
        client = await router.connect()
        for comment in (UNSAMPLED, UNSAMPLED, UNSAMPLED, PARENT, PARENT):
            await exchange(client, find(1, comment=comment))
            await exchange(client, command({"find": COLLECTION, "filter": {"key": 1, "$comment": comment}}))
        assert router.taken == 0
        found = contexts(router)
        assert found[:6] == [None] * 6
        assert {each.trace_id for each in found[6:] if each is not None} == {TRACE}
    spans = collector.of_trace(TRACE, 8)
    requests = {each.span_id: each.parent_id for each in spans if each.is_request}
    operations = {each.span_id for each in spans if not each.is_request}
    assert [each.span_id for each in found[6:] if each is not None] == [*requests]
    assert set(requests.values()) == operations


async def test_a_shard_that_does_not_understand_receives_no_trace(
    options: TracingOptions, collector: Collector
) -> None:
    async with passage_router(tracing=options) as router:
        client = await router.connect()
        await exchange(client, find(1, comment=PARENT))
        assert contexts(router) == [None]
    assert len(collector.of_trace(TRACE, 2)) == 2


async def test_a_shard_with_a_member_that_does_not_understand_receives_no_trace(options: TracingOptions) -> None:
    """The sender selects the member, for each attempt."""
    async with passage_router(tracing=options, extensions=UNDERSTOOD) as router:
        client = await router.connect()
        for shard in router.context.shards.known():
            if hasattr(shard.client.monitor, "members"):
                cast("Any", shard.client.monitor.members)["older.test:1"] = SimpleNamespace(extensions=())
        await exchange(client, find(1, comment=PARENT))
        assert contexts(router) == [None]


async def test_all_are_traced_at_a_ratio_of_1(options: TracingOptions, collector: Collector) -> None:
    async with passage_router(tracing=sampled(options, 1.0), extensions=UNDERSTOOD) as router:
        client = await router.connect()
        for key in range(6):
            await exchange(client, find(key))
        assert router.taken == 0
        assert router.outcomes["declined"] == 4
        traces = {each.trace_id for each in contexts(router) if each is not None}
        assert len(traces) == 6
    spans = collector.wait(lambda spans: len(spans) >= 12)
    assert {each.trace_id for each in spans} == traces
    assert sum(not each.parent_id for each in spans) == 6


async def test_a_share_is_traced_whether_or_not_passages_know_the_request(
    options: TracingOptions, collector: Collector
) -> None:
    total, ratio = 600, 0.25
    async with passage_router(tracing=sampled(options, ratio), extensions=UNDERSTOOD) as router:
        client = await router.connect()
        for key in range(total):
            await exchange(client, find(key))
        traced = sum(each is not None for each in contexts(router))
        # The first ones, from which the passage is learned, and a few that the lane leaves to the ordinary path.
        assert total - traced - router.taken <= 5
        assert abs(traced - total * ratio) < 64  # six standard deviations
    assert len(collector.wait(lambda spans: len(spans) >= 2 * traced)) == 2 * traced


async def test_a_client_that_declines_is_not_drawn(options: TracingOptions) -> None:
    async with passage_router(tracing=sampled(options, 1.0), extensions=UNDERSTOOD) as router:
        client = await router.connect()
        await exchange(client, find(1, comment=UNSAMPLED))
        assert contexts(router) == [None]


async def test_the_request_to_a_shard_is_an_exemplar(options: TracingOptions) -> None:
    async with passage_router(tracing=options, extensions=UNDERSTOOD) as router:
        client = await router.connect()
        await exchange(client, find(1))
        assert router.context.shard_counts.exemplars == {}
        await exchange(client, find(1, comment=PARENT))
        [context] = contexts(router)[1:]
        assert context is not None
        [(shard, by_bucket)] = router.context.shard_counts.exemplars.items()
        [(bucket, exemplar)] = by_bucket.items()
        assert shard == router.sent[-1][0]
        assert exemplar.labels == {"trace_id": TRACE, "span_id": context.span_id}
        counted = router.context.shard_counts.statistics(router.context.metrics.operations, ())[shard]
        assert counted.buckets[bucket] > 0
        assert exemplar.value <= counted.seconds


async def test_documents_and_statements_are_forwarded_with_the_trace(options: TracingOptions) -> None:
    async with passage_router(tracing=options, extensions=UNDERSTOOD) as router:
        client = await router.connect()
        insert = {"insert": COLLECTION, "documents": [{"_id": 1, "key": 1}, {"_id": 2, "key": 90}], "comment": PARENT}
        reply = await exchange(client, command(insert))
        assert reply is not None
        assert sorted(shard for shard, _ in router.sent) == ["east", "west"]
        assert {each.trace_id for each in contexts(router) if each is not None} == {TRACE}
        assert None not in contexts(router)


async def test_the_error_of_a_shard_is_in_both_spans(options: TracingOptions, collector: Collector) -> None:
    async with passage_router(tracing=options) as router:
        router.answer = lambda *_: {**times(), "ok": 0.0, "errmsg": "no", "code": 2, "codeName": "BadValue"}
        client = await router.connect()
        await exchange(client, find(1, comment=PARENT))
    spans = collector.of_trace(TRACE, 2)
    assert [each.attributes["error.type"] for each in spans] == ["BadValue"] * 2
    assert all(each.has_failed for each in spans)


@pytest.mark.parametrize("passages", ["true", "false"])
async def test_nothing_of_it_runs_while_it_is_off(passages: str) -> None:
    called: set[str] = set()

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            called.add(frame.f_code.co_filename)

    async with passage_router(enablePassages=passages) as router:
        client = await router.connect()
        sys.setprofile(note)
        try:
            for key in range(10):
                await exchange(client, find(key, comment=PARENT))
        finally:
            sys.setprofile(None)
        assert router.taken == (8 if passages == "true" else 0)
    assert any(each.endswith("/router/passages.py") for each in called)
    assert not [each for each in called if "shardwright" in each and "trac" in each.rpartition("/")[2]]
