"""Passages of ``getMore`` change nothing about requests to shards, replies to clients, and counts."""

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import bson
import pytest
import trio
from bson import Binary, Int64
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shardwright.wire.request import Request
from tests.router.passage_router import (
    COLLECTION,
    START,
    PassageRouter,
    Reply,
    command,
    exchange,
    passage_router,
    times,
    usual_reply,
)
from tests.router.test_passages import EVENTS, SESSION, Step, check_same, drivers
from tests.router.writes.builders import NAMESPACE

FIRST_ID = 1_000
OTHER_SESSION = {"id": Binary(bytes(16), 4)}


def open_cursor(key: int = 1, **more: Any) -> bytes:  # noqa: ANN401
    return command({"find": COLLECTION, "filter": {"key": key}, "batchSize": 1, **more})


def get_more(cursor_id: int = FIRST_ID, **more: Any) -> bytes:  # noqa: ANN401
    return command({"getMore": Int64(cursor_id), "collection": COLLECTION, "batchSize": 10, **more})


def kill(cursor_id: int = FIRST_ID) -> bytes:
    return command({"killCursors": COLLECTION, "cursors": [Int64(cursor_id)]})


def batch(cursor_id: int = 77, size: int = 3, name: str = "nextBatch", **more: Any) -> dict[str, Any]:  # noqa: ANN401
    documents = [{"_id": number} for number in range(size)]
    return {"cursor": {name: documents, "id": Int64(cursor_id), "ns": NAMESPACE}, **times(), **more}


def answering(number: int = 1_000, reply: Any = None) -> Callable[[PassageRouter], None]:  # noqa: ANN401
    """Make shards open cursors and return batches; one request for a batch gets another reply."""

    def set_answer(router: PassageRouter) -> None:
        asked: Counter[str] = Counter()

        def answer(shard: str, request: Request) -> Any:  # noqa: ANN401
            asked[request.name] += 1
            if request.name == "find":
                return batch(76 + asked["find"], name="firstBatch")
            if request.name == "getMore":
                asked_for = request.get(b"getMore")
                return reply if asked["getMore"] == number else batch(asked_for, asked["getMore"] % 4)
            return usual_reply(request)

        router.answer = answer

    return set_answer


check = partial(check_same, before=answering())
TIME = drivers()["$clusterTime"]


class TestSame:
    @pytest.mark.parametrize(
        "fields",
        [
            {},
            {"lsid": SESSION},
            drivers(),
            {"lsid": SESSION, "$readPreference": {"mode": "primary"}},
            {"lsid": SESSION, "apiVersion": "1"},
            {"comment": "a", "maxTimeMS": 500},
        ],
    )
    def test_batches(self, fields: dict[str, Any]) -> None:
        opening = {name: value for name, value in fields.items() if name != "maxTimeMS"}
        assert check([open_cursor(**opening), *[get_more(**fields)] * 6]) == 4

    def test_several_cursors(self) -> None:
        steps = [open_cursor(1), open_cursor(99)] + [get_more(FIRST_ID + number % 2) for number in range(8)]
        assert check(steps) == 6

    def test_without_a_batch_size(self) -> None:
        more = command({"getMore": Int64(FIRST_ID), "collection": COLLECTION})
        assert check([open_cursor(), *[more] * 5]) == 3

    @pytest.mark.parametrize("time", [(START.time - 5, 3), (START.time, START.inc + 1)])
    def test_the_clients_cluster_time(self, time: tuple[int, int]) -> None:
        other = drivers(time=bson.Timestamp(*time))
        assert check([open_cursor(**drivers()), *[get_more(**drivers())] * 3, *[get_more(**other)] * 3]) >= 1

    @pytest.mark.parametrize(
        "fields",
        [
            {},
            {"lsid": OTHER_SESSION},
            {"lsid": {**SESSION, "uid": Binary(b"u" * 32)}},
            {"lsid": SESSION, "collection": "others"},
            {"lsid": SESSION, "txnNumber": Int64(1)},
            {"lsid": SESSION, "txnNumber": Int64(1), "autocommit": False, "startTransaction": True},
            {"lsid": SESSION, "readConcern": {"level": "local"}},
            {"lsid": SESSION, "batchSize": -1},
            {"lsid": SESSION, "maxTimeMS": "a"},
            {"lsid": SESSION, "other": 1},
        ],
    )
    def test_other_readers(self, fields: dict[str, Any]) -> None:
        steps = [get_more(lsid=SESSION)] * 3
        assert check([open_cursor(lsid=SESSION), *steps, *[get_more(**fields)] * 4, *steps]) >= 1

    def test_cursors_of_no_session_and_of_unknown_ids(self) -> None:
        assert check([open_cursor(), *[get_more()] * 4, *[get_more(lsid=SESSION)] * 3, get_more(5), get_more()]) >= 2

    def test_a_killed_cursor(self) -> None:
        assert check([open_cursor(), *[get_more()] * 4, kill(), get_more(), open_cursor(), get_more(FIRST_ID + 1)]) == 3

    def test_a_cursor_that_ends(self) -> None:
        steps = [open_cursor(), *[get_more()] * 6, open_cursor(), get_more(FIRST_ID + 1)]
        assert check(steps, before=answering(5, batch(0))) == 4

    @pytest.mark.parametrize(
        "reply",
        [
            {**times(), "ok": 0.0, "errmsg": "cursor id 77 not found", "code": 43, "codeName": "CursorNotFound"},
            {"ok": 0.0, "errmsg": "no", "code": 2, "codeName": "BadValue"},
            {"ok": 0.0, "errmsg": "interrupted", "code": 11602, "codeName": "InterruptedDueToReplStateChange"},
            {"ok": 1.0, **batch()},
            {"cursor": {"id": Int64(77), "ns": NAMESPACE, "nextBatch": []}, **times()},
            {"cursor": {"nextBatch": [], "partialResultsReturned": True, "id": Int64(77), "ns": NAMESPACE}, **times()},
            batch(78),
            batch(size=4_000),
            batch(0, size=4_000),
            Reply(batch(), (30,)),
            Reply(batch(0), (100,)),
        ],
    )
    def test_unusual_replies(self, reply: Any) -> None:  # noqa: ANN401
        assert check([open_cursor(**drivers()), *[get_more(**drivers())] * 7], before=answering(5, reply)) >= 2

    @pytest.mark.parametrize("event", sorted(EVENTS))
    def test_what_changes_is_obeyed_at_once(self, event: str) -> None:
        steps = [get_more(**drivers())] * 4
        assert check([open_cursor(**drivers()), *steps, EVENTS[event], *steps]) >= 2

    def test_cursors_on_several_shards(self) -> None:
        merged = command({"find": COLLECTION, "filter": {}, "batchSize": 1})

        def answer(router: PassageRouter) -> None:
            router.answer = lambda _, request: batch(77, name="firstBatch" if request.name == "find" else "nextBatch")

        assert check_same([merged, *[get_more()] * 5], before=answer) == 0

    @pytest.mark.parametrize(
        "fields",
        [{}, {"lsid": SESSION}, drivers(), {"noCursorTimeout": True}, {"lsid": {**SESSION, "uid": Binary(bytes(32))}}],
    )
    def test_cursors_that_passages_open(self, fields: dict[str, Any]) -> None:
        opening = [open_cursor(key, **fields) for key in (1, 99, 2, 98)]
        reading = {name: value for name, value in fields.items() if name != "noCursorTimeout"}
        steps = [*opening, *[get_more(FIRST_ID + number % 4, **reading) for number in range(8)], kill(FIRST_ID + 2)]
        assert check([*steps, get_more(FIRST_ID + 2, **reading)]) >= 2


def test_what_is_kept_of_a_cursor_that_a_passage_opens() -> None:
    async def kept(is_on: bool) -> list[Any]:
        async with passage_router(enablePassages=str(is_on).lower()) as router:
            answering()(router)
            client = await router.connect()
            for key in range(4):
                await exchange(client, open_cursor(key, noCursorTimeout=True, **drivers()))
            assert router.taken == 2 * is_on
            return [
                (each.id, each.owner, each.command, each.is_immortal, each.session_key, each.batches, each.client.id)
                for each in router.context.cursors.open_cursors
                if each.client is not None
            ]

    with_passages, without = (trio.run(kept, is_on) for is_on in (True, False))
    assert [each[:-1] for each in with_passages] == [each[:-1] for each in without]
    assert len(with_passages) == 4


IDS = st.integers(FIRST_ID, FIRST_ID + 2)
FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "lsid": st.sampled_from([SESSION, OTHER_SESSION]),
    "$clusterTime": st.just(TIME),
    "comment": st.sampled_from(["a", "b"]),
    "maxTimeMS": st.sampled_from([0, 60_000]),
    "collection": st.sampled_from([COLLECTION, "others"]),
}


@st.composite
def steps_on_cursors(draw: st.DrawFn) -> list[Step]:
    """Requests that open, read and kill a few cursors."""
    names = draw(st.lists(st.sampled_from(sorted(FIELDS)), max_size=2, unique=True))
    fields = {name: draw(FIELDS[name]) for name in names}
    match draw(st.sampled_from(["open", "read", "read", "read", "kill", "event"])):
        case "open":
            fields.pop("collection", None)
            return [open_cursor(draw(st.sampled_from([1, 99])), **fields)]
        case "kill":
            return [kill(draw(IDS))]
        case "event":
            return [EVENTS[draw(st.sampled_from(sorted(EVENTS)))]]
    return [get_more(draw(IDS), **fields)] * draw(st.integers(1, 3))


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(steps_on_cursors(), min_size=3, max_size=12), st.integers(1, 8), st.sampled_from([0, 77, 78]))
def test_passages_change_nothing(steps: list[list[Step]], number: int, cursor_id: int) -> None:
    opened: Sequence[Step] = [open_cursor(lsid=SESSION), open_cursor()]
    check([*opened, *[step for several in steps for step in several]], before=answering(number, batch(cursor_id)))


def learned(steps: Callable[[PassageRouter, Any], Any]) -> None:
    """Run something on a router that has learned to pass on a ``getMore``."""

    async def main() -> None:
        async with passage_router() as router:
            answering()(router)
            client = await router.connect()
            await exchange(client, open_cursor())
            for _ in range(3):
                await exchange(client, get_more())
            assert router.taken == 1
            router.sent.clear()
            router.has_sent = trio.Event()
            await steps(router, client)

    trio.run(main)


class TestLane:
    def test_a_cursor_is_killed_while_it_is_read(self) -> None:
        async def steps(router: PassageRouter, client: Any) -> None:  # noqa: ANN401
            router.answer = lambda _, request: Reply(usual_reply(request), wait=trio.sleep_forever)
            await client.send(get_more())
            await router.has_sent.wait()
            second = await router.connect()
            answering()(router)
            reply = await exchange(second, get_more())
            assert reply is not None
            assert bson.decode(reply[21:])["codeName"] == "CursorInUse"
            reply = await exchange(second, kill())
            assert reply is not None
            assert bson.decode(reply[21:])["cursorsKilled"] == [FIRST_ID]
            reply = await client.receive()
            assert bson.decode(reply[21:])["codeName"] == "CursorKilled"
            assert router.counts()["operations"]["getMore"]["CursorKilled"] == 1
            reply = await exchange(client, get_more())
            assert reply is not None
            assert bson.decode(reply[21:])["codeName"] == "CursorNotFound"
            await router.wait_until(lambda: not router.borrowed)
            assert not router.context.cursors.open_cursors

        learned(steps)

    def test_a_client_that_leaves(self) -> None:
        async def steps(router: PassageRouter, client: Any) -> None:  # noqa: ANN401
            router.answer = lambda _, request: Reply(usual_reply(request), wait=trio.sleep_forever)
            await client.send(get_more())
            await router.has_sent.wait()
            await client.stream.aclose()
            await router.wait_until(lambda: not router.server.clients and not router.borrowed)
            assert not router.context.cursors.open_cursors

        learned(steps)

    def test_an_interrupted_operation(self) -> None:
        async def steps(router: PassageRouter, client: Any) -> None:  # noqa: ANN401
            router.answer = lambda _, request: Reply(usual_reply(request), wait=trio.sleep_forever)
            await client.send(get_more())
            await router.has_sent.wait()
            [served] = router.server.clients
            assert served.state.operation.targeted == ("east",)
            served.on_deadline()
            reply = await client.receive()
            assert bson.decode(reply[21:])["codeName"] == "MaxTimeMSExpired"
            await router.wait_until(lambda: not router.borrowed)
            assert not router.context.cursors.open_cursors

        learned(steps)

    def test_a_shard_is_removed_while_its_cursor_is_read(self) -> None:
        async def steps(router: PassageRouter, client: Any) -> None:  # noqa: ANN401
            is_removed = trio.Event()
            router.answer = lambda *_: Reply(batch(size=4_000), wait=is_removed.wait)
            await client.send(get_more())
            await router.has_sent.wait()
            shards = router.context.shards
            shards._removed["east"] = shards._shards.pop("east")
            is_removed.set()
            reply = await client.receive()
            assert len(bson.decode(reply[21:])["cursor"]["nextBatch"]) == 4_000
            assert len(router.sent) == 1
            reply = await exchange(client, get_more())
            assert reply is not None
            assert len(bson.decode(reply[21:])["cursor"]["nextBatch"]) == 4_000

        learned(steps)

    def test_a_shard_that_closes_its_connection(self) -> None:
        async def steps(router: PassageRouter, client: Any) -> None:  # noqa: ANN401
            router.answer = lambda *_: Reply(None)
            reply = await exchange(client, get_more())
            assert reply is not None
            assert bson.decode(reply[21:])["codeName"] == "HostUnreachable"
            assert not router.context.cursors.open_cursors

        learned(steps)

    def test_an_internal_error_ends_the_cursor(self, monkeypatch: pytest.MonkeyPatch) -> None:
        async def steps(router: PassageRouter, client: Any) -> None:  # noqa: ANN401
            def fail(*_: object) -> None:
                raise ZeroDivisionError

            with monkeypatch.context() as patched:
                patched.setattr(router.server.passages, "finish", fail)
                assert await exchange(client, get_more()) is None
            await router.wait_until(lambda: not router.borrowed)
            assert not router.context.cursors.open_cursors

        learned(steps)
