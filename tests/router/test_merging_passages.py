"""Passages of finds that go to all shards of a collection and are merged."""

from collections import Counter
from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Any

import bson
import pytest
import trio
from bson import Int64
from hypothesis import given
from hypothesis import strategies as st

from shardwright.router.passage_layout import merge_sources
from shardwright.router.reads.result_merger import Batch, ResultMerger
from shardwright.router.reads.sort_order import FieldOrder, SortOrder
from shardwright.wire.rawbson import ARRAY, DocumentArray
from shardwright.wire.request import Request
from tests.router.passage_router import PassageRouter, Reply, exchange, passage_router, times
from tests.router.test_passages import BY_TWO, COLLATED, EVENTS, check_same, drivers, merge
from tests.router.writes.builders import NAMESPACE

SORTED = {"sort": {"value": 1}, "limit": 100}


def documents(shard: str, size: int) -> list[dict[str, Any]]:
    """Documents of one shard in the order of their values; some have equal ones on both shards."""
    step = 2 if shard == "east" else 3
    return [{"_id": f"{shard}{number}", "value": number * step, "text": "x" * number} for number in range(size)]


def cursor(batch: list[dict[str, Any]], cursor_id: int = 0, **more: Any) -> dict[str, Any]:  # noqa: ANN401
    return {"cursor": {"firstBatch": batch, "id": Int64(cursor_id), "ns": NAMESPACE, **more}, **times()}


def result(shard: str, request: Request, size: int = 80) -> dict[str, Any]:
    """The reply of a shard with some documents, sorted and limited."""
    found = documents(shard, size)
    if request.get(b"sort") == {"value": -1}:
        found.reverse()
    limit = request.get(b"limit")
    return cursor(found[:limit] if limit else found)


def result_with_sort_keys(shard: str, request: Request) -> dict[str, Any]:
    """The reply of a shard, with sort keys in its documents if the router has requested them."""
    found = documents(shard, 20)
    if b"$sortKey" in request.body:
        found = [{**each, "$sortKey": [each["value"]]} for each in found]
    limit = int(request.get(b"limit", 0))
    return cursor(found[:limit] if limit else found)


def scripted(answer: Callable[[str, Request], Any]) -> Callable[[PassageRouter], None]:
    """Make shards answer by a script (`PassageRouter.answer`)."""

    def set_answer(router: PassageRouter) -> None:
        router.answer = answer

    return set_answer


def nth(number: int, shard: str, reply: Any) -> Callable[[PassageRouter], None]:  # noqa: ANN401
    """Make a shard give another reply to one of its requests."""

    def set_answer(router: PassageRouter) -> None:
        asked: Counter[str] = Counter()

        def answer(each: str, request: Request) -> Any:  # noqa: ANN401
            asked[each] += 1
            return reply if (each, asked[each]) == (shard, number) else result(each, request, 40)

        router.answer = answer

    return set_answer


class TestSame:
    @pytest.mark.parametrize("size", [0, 1, 40, 60])
    @pytest.mark.parametrize(
        "more",
        [
            SORTED,
            {"sort": {"value": -1}, "limit": Int64(100)},
            {"sort": {"value": 1, "_id": -1}, "limit": 90},
            {"limit": 30},
            {"limit": 30, "batchSize": 50},
            {},
        ],
    )
    def test_results_of_all_sizes(self, more: dict[str, Any], size: int) -> None:
        steps = [merge({"value": {"$gte": key}}, **more, **drivers()) for key in range(5)]
        taken = check_same(steps, before=scripted(partial(result, size=size)))
        assert taken == (3 if size < 60 or "limit" in more else 0)

    def test_projections_that_keep_the_sort(self) -> None:
        for projection in ({"value": 1}, {"text": 0}):
            steps = [merge({"value": key}, projection=projection, **SORTED) for key in range(4)]
            assert check_same(steps, before=scripted(result)) == 2

    @pytest.mark.parametrize(
        "more",
        [
            {"sort": {"value": 1}, "skip": 1},
            {"sort": {"value": 1}, "skip": 3, "limit": 20},
            {"skip": 3, "limit": 20},
            {"limit": 1, "singleBatch": True},
            {"singleBatch": True, "limit": 1, "projection": {"text": 1}, "skip": 0},
            {"sort": {"a.b": 1}},
            {"limit": 9, "projection": {"text": 1}, "sort": {"value": 1}},
            {"collation": {"locale": "fr"}, **SORTED},
            {"limit": 100.0, "sort": {"value": 1}},
        ],
    )
    @pytest.mark.parametrize("fields", [{}, drivers()], ids=["bare", "drivers"])
    def test_commands_that_are_rewritten_for_shards(self, more: dict[str, Any], fields: dict[str, Any]) -> None:
        steps = [merge({"other": key}, **more, **fields) for key in range(4)]
        assert check_same(steps, before=scripted(result_with_sort_keys)) == 2
        steps = [merge({"other": key}, **fields, **more) for key in range(4)]
        assert check_same(steps, before=scripted(result_with_sort_keys)) == 2

    @pytest.mark.parametrize("more", [{"allowPartialResults": True, **SORTED}, {"readConcern": {"level": "snapshot"}}])
    def test_what_is_left_to_the_ordinary_way(self, more: dict[str, Any]) -> None:
        steps = [merge({"other": key}, **more) for key in range(4)]
        assert check_same(steps, before=scripted(lambda *_: cursor([]))) == 0

    @pytest.mark.parametrize("query", [{"key": {"$gte": 1}}, {"key.a": 1}, {"$or": [{"value": 1}]}, {"$comment": "a"}])
    def test_queries_that_may_choose_shards(self, query: dict[str, Any]) -> None:
        assert check_same([merge(query, **SORTED)] * 4, before=scripted(result)) == 0

    def test_other_shard_keys(self) -> None:
        steps = [merge({"value": key, "n": "a"}, **SORTED) for key in range(4)]
        assert check_same(steps, routing=BY_TWO, before=scripted(result)) == 2
        assert check_same([merge({"name": "a"}, **SORTED)] * 4, routing=BY_TWO, before=scripted(result)) == 0
        assert check_same(steps, routing=COLLATED, before=scripted(result_with_sort_keys)) == 2

    @pytest.mark.parametrize("shard", ["east", "west"])
    @pytest.mark.parametrize(
        "reply",
        [
            cursor(documents("east", 5), 77),
            cursor(documents("east", 5), partialResultsReturned=True),
            cursor([{"_id": number, "value": -number} for number in range(100)]),
            cursor([{"_id": number, "value": 0} for number in range(70)]),
            cursor(documents("west", 3) * 1_000),
            {"cursor": {"firstBatch": [1, 2], "id": Int64(0), "ns": NAMESPACE}, **times()},
            {"cursor": {"firstBatch": [], "id": Int64(0), "ns": "shop.others"}, **times()},
            {**times(), "ok": 0.0, "errmsg": "no", "code": 2, "codeName": "BadValue"},
            {"ok": 0.0, "errmsg": "stale", "code": 13388, "codeName": "StaleConfig", "ns": NAMESPACE},
            {"ok": 0.0, "errmsg": "stepped down", "code": 10107, "codeName": "NotWritablePrimary"},
            {"ok": 1.0, **cursor([])},
            Reply(None),
            Reply(cursor(documents("east", 5)), (40,)),
        ],
    )
    def test_unusual_replies(self, shard: str, reply: Any) -> None:  # noqa: ANN401
        steps = [merge({"value": {"$gte": key}}, **SORTED, **drivers()) for key in range(6)]
        assert check_same(steps, before=nth(4, shard, reply)) >= 1

    def test_shares_that_are_often_too_small(self) -> None:
        def one_has_all(shard: str, request: Request) -> dict[str, Any]:
            return result(shard, request, 100) if shard == "east" else cursor([])

        steps = [merge({"value": {"$gte": key}}, **SORTED) for key in range(40)]
        check_same(steps, before=scripted(one_has_all))

    @pytest.mark.parametrize("event", sorted(EVENTS))
    def test_what_changes_is_obeyed_at_once(self, event: str) -> None:
        steps = [merge({"value": key}, **SORTED, **drivers()) for key in range(4)]
        assert check_same([*steps, EVENTS[event], *steps], before=scripted(partial(result, size=20))) >= 2

    def test_shards_advance_the_clock(self) -> None:
        def advancing(router: PassageRouter) -> None:
            increments = {"east": count(2), "west": count(50)}

            def answer(shard: str, request: Request) -> dict[str, Any]:
                time = bson.Timestamp(1_700_000_100, next(increments[shard]))
                return {**result(shard, request, 20), **times(time)}

            router.answer = answer

        assert check_same([merge({"value": key}, **SORTED, **drivers()) for key in range(6)], before=advancing) >= 3


def learned(steps: Callable[[PassageRouter, Any], Any]) -> None:
    """Run something on a router that has learned a merge."""

    async def main() -> None:
        async with passage_router() as router:
            router.answer = partial(result, size=20)
            client = await router.connect()
            for key in range(3):
                await exchange(client, merge({"value": key}, **SORTED))
            assert router.taken == 1
            router.sent.clear()
            router.has_sent = trio.Event()
            await steps(router, client)

    trio.run(main)


class TestLane:
    @pytest.mark.parametrize("late", ["east", "west"])
    def test_replies_in_any_order(self, late: str) -> None:
        async def steps(router: PassageRouter, client: Any) -> None:  # noqa: ANN401
            may_answer = trio.Event()

            def answer(shard: str, request: Request) -> Any:  # noqa: ANN401
                reply = result(shard, request, 20)
                return Reply(reply, wait=may_answer.wait) if shard == late else reply

            router.answer = answer
            await client.send(merge({"value": 5}, **SORTED))
            await router.wait_until(lambda: len(router.sent) == 2)
            await trio.testing.wait_all_tasks_blocked()
            may_answer.set()
            reply = await client.receive()
            assert len(bson.decode(reply[21:])["cursor"]["firstBatch"]) == 40
            assert (router.taken, router.borrowed) == (2, 0)

        learned(steps)

    @pytest.mark.parametrize("late", ["east", "west"])
    def test_a_client_that_leaves(self, late: str) -> None:
        async def steps(router: PassageRouter, client: Any) -> None:  # noqa: ANN401
            def answer(shard: str, request: Request) -> Any:  # noqa: ANN401
                reply = result(shard, request, 20)
                return Reply(reply, wait=trio.sleep_forever) if shard == late else reply

            router.answer = answer
            await client.send(merge({"value": 5}, **SORTED))
            await router.wait_until(lambda: len(router.sent) == 2)
            await trio.testing.wait_all_tasks_blocked()
            await client.stream.aclose()
            await router.wait_until(lambda: not router.server.clients and not router.borrowed)
            router.answer = partial(result, size=20)
            second = await router.connect()
            for key in range(3):
                assert await exchange(second, merge({"value": key}, **SORTED)) is not None

        learned(steps)

    @pytest.mark.parametrize("late", ["east", "west"])
    def test_an_operation_is_shown_and_killed(self, late: str) -> None:
        async def steps(router: PassageRouter, client: Any) -> None:  # noqa: ANN401
            def answer(shard: str, request: Request) -> Any:  # noqa: ANN401
                reply = cursor([], 77) if late == "west" else result(shard, request, 20)
                return Reply(reply, wait=trio.sleep_forever) if shard == late else reply

            router.answer = answer
            await client.send(merge({"value": 5}, **SORTED))
            await router.wait_until(lambda: len(router.sent) == 2)
            await trio.testing.wait_all_tasks_blocked()
            [served] = router.server.clients
            operation = served.state.operation
            assert operation.targeted == ("east", "west")
            served.on_deadline()
            reply = await client.receive()
            assert bson.decode(reply[21:])["codeName"] == "MaxTimeMSExpired"
            if late == "west":  # the cursor that east has opened
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(router.context.cursors.run)
                    await router.wait_until(lambda: any(b"killCursors" in frame for _, frame in router.sent))
                    nursery.cancel_scope.cancel()
            await router.wait_until(lambda: not router.borrowed)
            router.answer = partial(result, size=20)
            assert await exchange(client, merge({"value": 5}, **SORTED)) is not None

        learned(steps)

    def test_a_connection_that_cannot_be_lent(self) -> None:
        async def steps(router: PassageRouter, client: Any) -> None:  # noqa: ANN401
            _, west = router.context.pools._pools.values()  # the first request to east came first
            lent = west._idle.pop()
            declined = router.outcomes["declined"]
            assert await exchange(client, merge({"value": 5}, **SORTED)) is not None
            assert router.outcomes["declined"] == declined + 1
            west._idle.append(lent)
            assert router.borrowed == 0

        learned(steps)


ROWS = st.lists(
    st.fixed_dictionaries({"a": st.one_of(st.integers(0, 4), st.none()), "b": st.integers(0, 9)}), max_size=9
)


@given(
    st.lists(ROWS, min_size=1, max_size=3),
    st.sampled_from([1, -1, None]),
    st.integers(0, 3),
    st.integers(0, 12),
    st.booleans(),
)
def test_merging_at_once_is_merging(
    rows: list[list[dict[str, Any]]], direction: int | None, skip: int, limit: int, has_shares: bool
) -> None:
    order = None
    if direction is not None:
        sort = bson.encode({"a": direction})
        parsed = SortOrder.parse(sort)
        assert parsed is not None
        order = FieldOrder.of(sort, parsed)
        rows = [
            sorted(each, key=lambda row: (row["a"] is not None, row["a"] or 0), reverse=direction < 0) for each in rows
        ]
    share = max(1, skip + limit - 1) if has_shares and limit and order is not None else None
    if share is not None:
        rows = [each[:share] for each in rows]

    def arrays() -> list[DocumentArray]:
        encoded = [bson.encode({"": each}) for each in rows]
        return [DocumentArray(each, (ARRAY, 4, 6, len(each) - 1)) for each in encoded]

    merger = ResultMerger(len(rows), order=order, skip=skip, limit=limit, share=share)
    for number, array in enumerate(arrays()):
        merger.feed(number, array, is_exhausted=True)
    batch = Batch(None)
    merger.fill(batch)
    assert merge_sources(arrays(), order, skip, limit, share) == (batch.documents if merger.is_done else None)
