"""Passages of a router change nothing about requests to shards, replies to clients, and counts."""

import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from itertools import count
from typing import Any
from uuid import UUID

import bson
import pytest
import trio
from bson import Binary, Int64, ObjectId
from bson.timestamp import Timestamp
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shardwright.daemon.audit_log import AuditLog
from shardwright.wire.message import encode_sequence
from shardwright.wire.passages import FRAME_BYTES_MAX
from shardwright.wire.request import Request
from tests.router.passage_router import (
    BY_KEY,
    COLLECTION,
    DATABASE,
    START,
    PassageRouter,
    Reply,
    command,
    exchange,
    passage_router,
    times,
    usual_reply,
)
from tests.router.writes.builders import table

_OWN_SESSION = re.compile(rb"(?<=\x03lsid\0H\0\0\0\x05id\0\x10\0\0\0\x04).{16}", re.DOTALL)

SESSION = {"id": Binary(UUID(int=5).bytes, 4)}
BY_HASH = table({"key": "hashed"}, [{"key": Int64(0)}], ["east", "west"])
BY_TWO = table({"key": 1, "name": 1}, [{"key": 50, "name": "m"}], ["east", "west"])
BY_ID = table({"_id": 1}, [{"_id": 50}], ["east", "west"])
COLLATED = table({"key": 1}, [{"key": "m"}], ["east", "west"], {"locale": "fr"})
NOT_SHARDED = None

Frames = Sequence[bytes]
Step = bytes | Callable[[PassageRouter], object]


def find(key: object, **more: Any) -> bytes:  # noqa: ANN401 - any field of a command
    return command({"find": COLLECTION, "filter": {"key": key}, "limit": 1, "singleBatch": True, **more})


def merge(query: dict[str, Any], **more: Any) -> bytes:  # noqa: ANN401
    """A find on all shards of the collection."""
    return command({"find": COLLECTION, "filter": query, **more})


def insert(document: dict[str, Any], **more: Any) -> bytes:  # noqa: ANN401
    return command(
        {"insert": COLLECTION, "ordered": True, **more}, encode_sequence(b"documents", [bson.encode(document)])
    )


def insert_in_body(document: dict[str, Any], **more: Any) -> bytes:  # noqa: ANN401
    return command({"insert": COLLECTION, "documents": [document], "ordered": True, **more})


def update(query: dict[str, Any], change: Any, **more: Any) -> bytes:  # noqa: ANN401
    statement = bson.encode({"q": query, "u": change})
    return command({"update": COLLECTION, "ordered": True, **more}, encode_sequence(b"updates", [statement]))


def delete(query: dict[str, Any], **more: Any) -> bytes:  # noqa: ANN401
    statement = bson.encode({"q": query, "limit": 1})
    return command({"delete": COLLECTION, "ordered": True, **more}, encode_sequence(b"deletes", [statement]))


def modify(query: dict[str, Any], change: Any, **more: Any) -> bytes:  # noqa: ANN401
    return command({"findAndModify": COLLECTION, "query": query, "update": change, **more})


def drivers(number: int | None = None, time: Timestamp = START, **more: Any) -> dict[str, Any]:  # noqa: ANN401
    """The fields that a driver adds."""
    signature = {"hash": Binary(bytes(range(20))), "keyId": Int64(7)}
    return {
        **more,
        "lsid": SESSION,
        **({} if number is None else {"txnNumber": Int64(number)}),
        "$clusterTime": {"clusterTime": time, "signature": signature},
    }


def after(time: Timestamp, level: str = "local") -> dict[str, Any]:
    """The read concern of a session that has seen a time."""
    return {"level": level, "afterClusterTime": time}


EACH: dict[str, Callable[[int], bytes]] = {
    "find": lambda key: find(key, **drivers(), **{"$readPreference": {"mode": "primaryPreferred"}}),
    "find-causal": lambda key: find(key, **drivers(readConcern=after(Timestamp(START.time, key)))),
    "find-limits": lambda key: find(key, **drivers(maxTimeMS=60_000, apiVersion="1")),
    "insert": lambda key: insert({"_id": ObjectId(), "key": key, "text": "x" * key}, **drivers(key + 1)),
    "insert-in-body": lambda key: insert_in_body(
        {"_id": ObjectId(), "key": key, "text": "x" * key}, **drivers(key + 1)
    ),
    "update": lambda key: update({"key": key}, {"$inc": {"counter": key}}, **drivers(key + 1)),
    "replace": lambda key: update({"key": key}, {"key": key, "b": {"c": key}}, **drivers(key + 1)),
    "delete": lambda key: delete({"key": key}, **drivers(key + 1)),
    "findAndModify": lambda key: modify({"key": key}, {"$set": {"v": float(key)}}, **drivers(key + 1)),
    "bare": lambda key: find(key),
    "merge": lambda key: merge({"value": {"$gte": key}}, sort={"value": 1}, limit=100, **drivers()),
    "merge-bare": lambda key: merge({"_id": key}),
}


def one_of_them(number: int, reply: Any) -> Callable[[Any], Any]:  # noqa: ANN401
    """Answers requests as usual, but the one with a number."""
    numbers = count(1)
    return lambda request: reply if next(numbers) == number else usual_reply(request)


async def observed(
    steps: Sequence[Step],
    *,
    routing: Any = BY_KEY,  # noqa: ANN401
    replies: Callable[[], Callable[[Any], Any]] | None = None,
    before: Callable[[PassageRouter], object] = lambda _: None,
    connected: Callable[[PassageRouter], object] = lambda _: None,
    audit: AuditLog | None = None,
    extensions: Sequence[str] = (),
    is_on: bool,
) -> tuple[list[Any], dict[str, Any], int]:
    """Return the traffic of shards and client in each step, the counts, and the number of requests in passages.

    Args:
        steps: frames of a client, and changes.
        routing: of the collection.
        replies: creates the function that answers the requests to shards.
        before: called before the first client connects.
        connected: called whenever a client has connected.
        audit: the audit log.
        extensions: what all shards announce.
        is_on: whether there are passages.
    """
    seen: list[Any] = []

    async def connect(router: PassageRouter) -> Any:  # noqa: ANN401
        client = await router.connect()
        await router.wait_until(lambda: len(router.server.clients) == 1)
        connected(router)
        return client

    async with passage_router(routing, audit, extensions=extensions, enablePassages=str(is_on).lower()) as router:
        before(router)
        if replies is not None:
            answer = replies()
            router.answer = lambda _, request: answer(request)
        client = await connect(router)
        for step in steps:
            if callable(step):
                step(router)
                continue
            reply = await exchange(client, step)
            sent = sorted((shard, without_own_session(frame)) for shard, frame in router.sent)
            seen.append((sent, reply if reply is None else reply[8:]))
            router.sent.clear()
            if reply is None:
                client = await connect(router)
        return seen, router.counts(), router.taken


def without_own_session(frame: bytes) -> bytes:
    """A request to a shard without the random id of a session of the router's own, or of its own request."""
    is_of_client = frame[4:8] == b"\1\0\0\0"
    return _OWN_SESSION.sub(b"", frame if is_of_client else frame[:4] + bytes(4) + frame[8:])


def check_same(steps: Sequence[Step], **options: Any) -> int:  # noqa: ANN401
    """Check that passages change nothing; returns how many requests took one."""
    on, counts_on, taken = trio.run(partial(observed, steps, is_on=True, **options))
    off, counts_off, taken_off = trio.run(partial(observed, steps, is_on=False, **options))
    assert taken_off == 0
    for number, (with_passages, without) in enumerate(zip(on, off, strict=True)):
        assert with_passages == without, number
    assert counts_on == counts_off
    return taken


class TestSame:
    @pytest.mark.parametrize("make", EACH.values(), ids=EACH)
    @pytest.mark.parametrize("routing", [BY_KEY, BY_HASH, NOT_SHARDED], ids=["range", "hashed", "not sharded"])
    def test_each_kind(self, make: Callable[[int], bytes], routing: Any) -> None:  # noqa: ANN401
        assert check_same([make(key) for key in (1, 99, 49, 50, 1, 70)], routing=routing) == 4

    def test_compound_key(self) -> None:
        steps = [find(key, filter={"key": key, "name": name, "n": key}) for key in (1, 50, 99) for name in ("a", "z")]
        assert check_same(steps, routing=BY_TWO) >= 2

    def test_arrays_of_other_forms(self) -> None:
        documents = [{"_id": key, "key": key} for key in (1, 99)]
        assert check_same([insert_in_body({}, documents=documents)] * 4) == 0
        assert check_same([insert_in_body({}, documents=[])] * 4) == 0
        assert check_same([insert_in_body({}, documents=[key]) for key in range(4)]) == 0
        assert (
            check_same([command({"insert": COLLECTION, **drivers(), "documents": [each]}) for each in documents]) == 0
        )
        assert check_same([insert_in_body({"key": key, "$clusterTime": {}}) for key in (1, 99, 2, 3)]) == 2
        last = [command({"$db": DATABASE, "insert": COLLECTION, "documents": [{"key": key}]}) for key in range(4)]
        assert check_same(last) == 0

    def test_documents_of_all_sizes_in_the_body(self) -> None:
        texts = ["x" * size for size in (0, 1, 2, 300, 5_000, 40_000, 70_000, 3)]
        assert check_same([insert_in_body({"_id": 1, "key": 1, "text": text}) for text in texts]) >= 4

    def test_an_id_that_the_router_makes(self) -> None:
        made = [insert({"_id": key, "key": key}) for key in (1, 99, 2)]
        assert check_same(made, routing=BY_ID) == 1
        made = [insert_in_body({"_id": key, "key": key}) for key in (1, 99, 2)]
        assert check_same(made, routing=BY_ID) == 1

    def test_long_beginnings_are_not_kept(self) -> None:
        long = {"comment": "x" * FRAME_BYTES_MAX}
        assert check_same([insert({"_id": key, "key": key}, **long) for key in (1, 2, 3)]) == 0
        assert check_same([find(key, **long) for key in (1, 2, 3)]) == 0
        assert check_same([insert({"_id": key, "key": key, "text": long}) for key in (1, 2, 3)]) == 1

    def test_strings_under_a_collation(self) -> None:
        assert check_same([find(text) for text in ("abc", "xyz", "abd")], routing=COLLATED) == 0

    @pytest.mark.parametrize("level", ["local", "majority", "available"])
    def test_read_concerns(self, level: str) -> None:
        assert check_same([find(key, readConcern={"level": level}) for key in (1, 99, 2, 3)]) == 2
        times = [after(Timestamp(START.time, key), level) for key in (1, 99, 2, 3)]
        assert check_same([find(1, **drivers(readConcern=concern)) for concern in times]) == 2

    def test_snapshots(self) -> None:
        steps = [find(key, readConcern={"level": "snapshot"}) for key in (1, 99, 2, 3)]
        assert check_same(steps) == 0

    def test_cluster_time_of_the_client_is_earlier_or_later(self) -> None:
        earlier, later = Timestamp(START.time - 5, 3), Timestamp(START.time, START.inc + 1)
        steps = [find(1, **drivers(time=time)) for time in (START, earlier, START, earlier, later, START, earlier)]
        assert check_same(steps) >= 4

    def test_shards_advance_the_clock(self) -> None:
        def replies() -> Callable[[Any], Any]:
            moments = count(2)
            return lambda request: usual_reply(request, Timestamp(START.time, next(moments)))

        assert check_same([EACH["update"](key) for key in range(10)], replies=replies) >= 5

    @pytest.mark.parametrize(
        "changed",
        [
            {"ok": 0.0, "errmsg": "no", "code": 11000, "codeName": "DuplicateKey"},
            {"n": 1, "writeErrors": [{"index": 0, "code": 11000, "errmsg": "E"}], **times()},
            {"n": 1, "writeConcernError": {"code": 64, "errmsg": "timeout"}, **times()},
            {"cursor": {"firstBatch": [], "id": Int64(55), "ns": f"shop.{COLLECTION}"}, **times()},
            {"n": 1, "ok": 1.0},
            {"n": 1, "opTime": Timestamp(1, 1), "electionId": ObjectId(bytes(12)), **times()},
        ],
    )
    @pytest.mark.parametrize("kind", ["find", "update", "insert", "insert-in-body"])
    def test_unusual_replies(self, kind: str, changed: dict[str, Any]) -> None:
        if kind == "find" and "n" in changed and "cursor" not in changed:
            pytest.skip("not a reply to a find")
        check_same([EACH[kind](key) for key in (1, 2, 3, 4, 5, 6)], replies=partial(one_of_them, 4, changed))

    @pytest.mark.parametrize("kind", ["find", "update", "insert", "insert-in-body", "findAndModify"])
    def test_a_shard_that_closes_its_connection(self, kind: str) -> None:
        check_same([EACH[kind](key) for key in (1, 2, 3, 4, 5, 6)], replies=partial(one_of_them, 4, Reply(None)))

    @pytest.mark.parametrize("kind", ["find", "update", "insert", "insert-in-body", "findAndModify"])
    def test_stale_versions(self, kind: str) -> None:
        stale = {
            "ok": 0.0,
            "errmsg": "stale",
            "code": 13388,
            "codeName": "StaleConfig",
            "ns": f"shop.{COLLECTION}",
        }
        check_same([EACH[kind](key) for key in (1, 2, 3, 4, 5)], replies=partial(one_of_them, 4, stale))


SCALARS = st.one_of(
    st.integers(-(2**31), 2**31 - 1),
    st.integers(0, 3),
    st.integers(-(2**63), 2**63 - 1).map(Int64),
    st.sampled_from(["a", "b", "zz", "updates", "\x03$clusterTime"]),
    st.floats(allow_nan=False),
    st.booleans(),
    st.none(),
    st.sampled_from([b"ab", b"cd"]),
    st.just(datetime(2024, 1, 1, tzinfo=UTC)),
    st.just(ObjectId(bytes(12))),
)
VALUES = st.one_of(SCALARS, st.fixed_dictionaries({"$gt": SCALARS}), st.lists(SCALARS, max_size=2))
NAMES = st.sampled_from(["key", "name", "_id", "key.a", "other"])
QUERIES = st.dictionaries(NAMES, VALUES, max_size=3)
CHANGES = st.one_of(
    st.fixed_dictionaries({"$set": st.dictionaries(st.sampled_from(["a", "b", "name"]), SCALARS, min_size=1)}),
    st.dictionaries(st.sampled_from(["a", "key"]), SCALARS),
    st.just([{"$set": {"a": 1}}]),
)
EXTRA: dict[str, st.SearchStrategy[Any]] = {
    "lsid": st.sampled_from([SESSION, {"id": Binary(bytes(16), 4)}, {"id": 1}]),
    "txnNumber": st.sampled_from([Int64(1), Int64(2), Int64(-1), 1]),
    "maxTimeMS": st.sampled_from([60_000, 50_000, 0]),
    "apiVersion": st.sampled_from(["1", "2"]),
    "$readPreference": st.sampled_from([{"mode": "primary"}, {"mode": "secondaryPreferred"}, {"mode": "odd"}]),
    "$clusterTime": st.sampled_from(
        [drivers(time=Timestamp(START.time, inc))["$clusterTime"] for inc in (0, 1, 2)] + [{"clusterTime": START}, 1]
    ),
    "comment": st.sampled_from(["a", "b"]),
    "readConcern": st.sampled_from(
        [
            *(after(Timestamp(START.time, inc)) for inc in (0, 1, 2)),
            *({"level": level} for level in ("local", "majority", "available", "linearizable", "snapshot", "odd")),
            after(START, "majority"),
            after(START, "snapshot"),
            {"afterClusterTime": 1},
            {"level": "snapshot", "atClusterTime": START},
            1,
        ]
    ),
    "writeConcern": st.sampled_from([{"w": 1}, {"w": 0}, {"w": "majority"}]),
    "ordered": st.booleans(),
    "collation": st.just({"locale": "fr"}),
    "let": st.just({"a": 1}),
}
OF_FINDS: dict[str, st.SearchStrategy[Any]] = {
    "sort": st.sampled_from([{"key": 1}, {"name": -1}, {"other": 1, "_id": 1}, {"a.b": 1}, {"$natural": 1}, {}, 1]),
    "limit": st.sampled_from([0, 1, 2, 100, Int64(100), 5.0, -1]),
    "batchSize": st.sampled_from([0, 1, 2, 100]),
    "skip": st.sampled_from([0, 1]),
    "singleBatch": st.booleans(),
    "projection": st.sampled_from([{"key": 1}, {"name": 0}, {"_id": 0, "other": 1}]),
    "allowPartialResults": st.booleans(),
}


@st.composite
def frames(draw: st.DrawFn) -> bytes:
    """A command, with few values, so that layouts come again."""
    kind = draw(st.sampled_from(["find", "insert", "insert-in-body", "update", "delete", "findAndModify"]))
    names = draw(st.lists(st.sampled_from(sorted(EXTRA)), max_size=3, unique=True))
    extra = {name: draw(EXTRA[name]) for name in names}
    query, change = draw(QUERIES), draw(CHANGES)
    match kind:
        case "find":
            names = draw(st.lists(st.sampled_from(sorted(OF_FINDS)), max_size=2, unique=True))
            return merge(query, **{name: draw(OF_FINDS[name]) for name in names}, **extra)
        case "findAndModify":
            return command({"findAndModify": COLLECTION, "query": query, "update": change, **extra})
        case "insert":
            return insert(query, **extra)
        case "insert-in-body":
            return insert_in_body(query, **extra)
        case "update":
            return update(query, change, **extra)
    return delete(query, **extra)


def varied(frame: bytes, numbers: Sequence[int]) -> list[bytes]:
    """The frame again, with single bytes changed: most are of the same layout, and all name the only database."""
    changed = [frame, frame]
    database_at = frame.index(b"\x02$db\0") + 9
    for number in numbers:
        at = 21 + number % (len(frame) - 21)
        if database_at <= at < database_at + len(DATABASE):
            continue
        changed.append(frame[:at] + bytes([(frame[at] + 1 + number) % 256]) + frame[at + 1 :])
    return changed


EVENTS: dict[str, Callable[[PassageRouter], object]] = {
    "fail point": lambda router: router.context.fail_points.configure(
        "failCommand", "alwaysOn", {"failCommands": ["find"], "errorCode": 5}
    ),
    "no fail point": lambda router: router.context.fail_points.configure("failCommand", "off"),
    "default concern": lambda router: router.context.default_concerns.take(
        {"defaultWriteConcern": {"w": 2}, "defaultWriteConcernSource": "global"}
    ),
    "no default concern": lambda router: router.context.default_concerns.take({}),
    "api version required": lambda router: router.context.parameters.set("requireApiVersion", True),
    "no api version required": lambda router: router.context.parameters.set("requireApiVersion", False),
    "chunks moved": lambda router: router.route(table({"key": 1}, [{"key": 50}], ["west", "east"])),
    "chunks moved back": lambda router: router.route(BY_KEY),
    "not sharded": lambda router: router.route(None),
    "sessions refreshed": lambda router: router.context.sessions.take(),
    "all is logged": lambda router: router.context.slow_operations.change(0, None),
    "clock advanced": lambda router: router.context.clock.observe_cluster_time((START.time << 32) + 9),
}


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.lists(
        st.one_of(
            st.builds(varied, frames(), st.lists(st.integers(0, 10_000), max_size=6)),
            st.sampled_from(sorted(EVENTS)).map(lambda name: [EVENTS[name]]),
        ),
        min_size=1,
        max_size=6,
    )
)
def test_passages_change_nothing(steps: list[list[Step]]) -> None:
    check_same([step for several in steps for step in several])


class TestChanges:
    """After a change of a passage's conditions, the next request is served by the new ones."""

    @pytest.mark.parametrize("event", sorted(EVENTS))
    @pytest.mark.parametrize("kind", ["find", "merge", "insert", "insert-in-body", "update", "findAndModify"])
    def test_what_changes_is_obeyed_at_once(self, event: str, kind: str) -> None:
        before = [EACH[kind](key) for key in (1, 99, 3)]
        after = [EACH[kind](key) for key in (4, 98, 5, 97)]
        taken = check_same([*before, EVENTS[event], *after])
        assert taken >= 1

    @pytest.mark.parametrize("kind", ["find", "merge", "insert", "insert-in-body", "update", "findAndModify"])
    def test_they_are_learned_again_by_the_present_routing(self, kind: str) -> None:
        before = [EACH[kind](key) for key in (1, 99, 3)]
        after = [EACH[kind](key) for key in (4, 98, 5, 97)]
        assert check_same([*before, EVENTS["chunks moved"], *after]) == 4

    async def test_they_are_not_learned_again_if_they_were_declined_for_once(self) -> None:
        async with passage_router() as router:
            client = await router.connect()
            for key in range(3):
                await exchange(client, find(key, **drivers(time=START)))
            learned, declined = router.outcomes["learned"], router.outcomes["declined"]
            for each in (b"1", b"2", b"3"):
                session = {"id": Binary(each * 16, 4)}  # it has to be noted
                await exchange(client, find(1, **{**drivers(time=START), "lsid": session}))
            assert router.outcomes["declined"] == declined + 3
            assert router.outcomes["learned"] == learned

    async def test_a_shape_that_made_room_is_counted_again(self) -> None:
        async with passage_router(queryStatsShapesMax="1") as router:
            client = await router.connect()
            for key in range(4):
                await exchange(client, find(key))
            await exchange(client, find({"$gt": 1}))
            for key in range(3):
                await exchange(client, find(key))
            assert router.taken
            counted = [each["metrics"]["execCount"] for each in router.context.query_shapes.documents()]
            assert counted == [3, 5]

    async def test_an_error_that_is_passed_on_is_an_error_of_its_shape(self) -> None:
        async with passage_router() as router:
            client = await router.connect()
            for key in range(4):
                await exchange(client, find(key))
            router.answer = lambda *_: {**times(), "ok": 0.0, "errmsg": "no", "code": 2, "codeName": "BadValue"}
            [before] = router.context.query_shapes.documents()
            await exchange(client, find(1))
            [shape] = router.context.query_shapes.documents()
            assert (shape["metrics"]["execCount"], shape["metrics"]["errorCount"]) == (5, 1)
            assert shape["metrics"]["bytesReturned"] == before["metrics"]["bytesReturned"]
            assert router.context.metrics.operations.statistics()["find"].outcomes["BadValue"] == 1

    async def test_a_write_with_errors_is_an_error_of_its_shape_and_of_its_command(self) -> None:
        async with passage_router() as router:
            client = await router.connect()
            for key in range(4):
                await exchange(client, EACH["insert"](key))
            error = {"index": 0, "code": 11000, "errmsg": "E11000 duplicate key error"}
            taken, router.answer = router.taken, lambda *_: {"n": 0, "writeErrors": [error], "ok": 1.0, **times()}
            await exchange(client, EACH["insert"](4))
            assert router.taken == taken
            [shape] = router.context.query_shapes.documents()
            assert (shape["metrics"]["execCount"], shape["metrics"]["errorCount"]) == (5, 1)
            statistics = router.context.metrics.operations.statistics()["insert"]
            assert statistics.outcomes == {"ok": 4, "DuplicateKey": 1}
            # As in mongos, the command itself has not failed.
            assert statistics.failures == 0

    async def test_no_shape_is_counted_once_they_are_off(self) -> None:
        async with passage_router() as router:
            client = await router.connect()
            for _ in range(2):
                for key in range(4):
                    await exchange(client, find(key))
                assert [each["metrics"]["execCount"] for each in router.context.query_shapes.documents()] == [4]
                router.context.parameters.set("queryStatsShapesMax", 0)
                for key in range(4):
                    await exchange(client, find(key))
                assert router.context.query_shapes.documents() == []
                router.context.parameters.set("queryStatsShapesMax", 500)

    async def test_the_parameter_turns_them_off(self) -> None:
        async with passage_router() as router:
            client = await router.connect()
            for key in range(5):
                await exchange(client, find(key))
            assert router.taken == 3
            router.context.parameters.set("enablePassages", False)
            for key in range(5):
                await exchange(client, find(key))
            assert router.taken == 3


def _cut_at(cut: int, _: str, request: Request) -> Reply:
    return Reply(usual_reply(request), (cut,))


def learned(steps: Callable[[PassageRouter, Any], Any]) -> None:
    """Run something on a router that has learned to pass on each kind of command."""

    async def main() -> None:
        async with passage_router() as router:
            client = await router.connect()
            for make in EACH.values():
                for key in (1, 99, 2):
                    await exchange(client, make(key))
            assert router.taken >= len(EACH)
            router.sent.clear()
            await steps(router, client)

    trio.run(main)


class TestLane:
    def test_a_request_in_two_pieces_cut_at_every_byte(self) -> None:
        async def steps(router: PassageRouter, client: Any) -> None:  # noqa: ANN401
            frame = EACH["update"](7)
            whole = await exchange(client, frame)
            for cut in range(1, len(frame)):
                await client.send(frame[:cut])
                await trio.testing.wait_all_tasks_blocked()
                await client.send(frame[cut:])
                reply = await client.receive()
                assert reply is not None
                assert whole is not None
                assert reply[8:] == whole[8:]
            assert [sent for _, sent in router.sent] == [router.sent[0][1]] * len(frame)

        learned(steps)

    def test_a_reply_in_two_pieces_cut_at_every_byte(self) -> None:
        async def steps(router: PassageRouter, client: Any) -> None:  # noqa: ANN401
            frame = EACH["find"](7)
            whole = await exchange(client, frame)
            left = router.outcomes["left"]
            assert whole is not None
            cuts = range(1, len(whole) - 60)
            for cut in cuts:
                router.answer = partial(_cut_at, cut)
                reply = await exchange(client, frame)
                assert reply is not None
                assert reply[8:] == whole[8:]
            assert router.outcomes["left"] == left + len(cuts)
            assert router.borrowed == 0

        learned(steps)

    def test_two_requests_in_one_segment(self) -> None:
        async def steps(router: PassageRouter, client: Any) -> None:  # noqa: ANN401
            await client.send(b"".join(EACH["update"](key) for key in (1, 99, 2)) + EACH["find"](3))
            replies = [await client.receive() for _ in range(4)]
            assert None not in replies
            assert [shard for shard, _ in router.sent] == ["east", "west", "east", "east"]
            await exchange(client, EACH["find"](3))

        learned(steps)

    def test_a_request_that_arrives_during_another(self) -> None:
        async def steps(router: PassageRouter, client: Any) -> None:  # noqa: ANN401
            may_answer, left = trio.Event(), router.outcomes["left"]
            router.answer = lambda _, request: Reply(usual_reply(request), wait=may_answer.wait)
            await client.send(EACH["find"](1))
            await router.has_sent.wait()
            await client.send(EACH["find"](99))
            await trio.testing.wait_all_tasks_blocked()
            may_answer.set()
            replies = [await client.receive() for _ in range(2)]
            assert None not in replies
            assert [shard for shard, _ in router.sent] == ["east", "west"]
            assert router.outcomes["left"] == left + 1

        learned(steps)

    @pytest.mark.parametrize("kind", ["find", "update"])
    def test_a_client_that_leaves_during_its_operation(self, kind: str) -> None:
        async def steps(router: PassageRouter, client: Any) -> None:  # noqa: ANN401
            may_answer = trio.Event()
            router.has_sent = trio.Event()
            router.answer = lambda _, request: Reply(usual_reply(request), wait=may_answer.wait)
            await client.send(EACH[kind](1))
            await router.has_sent.wait()
            await client.stream.aclose()
            await trio.testing.wait_all_tasks_blocked()
            if kind == "update":
                assert len(router.server.clients) == 1  # writes run to completion
                may_answer.set()
            await router.wait_until(lambda: not router.server.clients)
            may_answer.set()
            outcomes = router.counts()["operations"][kind]
            assert any("Disconnect" in name or name == "ok" for name in outcomes), outcomes
            await router.wait_until(lambda: not router.borrowed)
            second = await router.connect()
            router.answer = lambda _, request: usual_reply(request)
            assert await exchange(second, EACH[kind](1)) is not None

        learned(steps)

    def test_a_time_limit(self) -> None:
        async def steps(router: PassageRouter, client: Any) -> None:  # noqa: ANN401
            for key in (1, 2, 3):
                await exchange(client, find(key, **drivers(maxTimeMS=300)))
            taken = router.taken
            router.answer = lambda _, request: Reply(usual_reply(request), wait=trio.sleep_forever)
            reply = await exchange(client, find(1, **drivers(maxTimeMS=300)))
            assert reply is not None
            assert bson.decode(reply[21:])["codeName"] == "MaxTimeMSExpired"
            assert router.taken == taken
            router.answer = lambda _, request: usual_reply(request)
            reply = await exchange(client, find(1, **drivers(maxTimeMS=300)))
            assert reply is not None
            assert bson.decode(reply[21:])["ok"] == 1

        learned(steps)

    def test_a_running_operation_is_shown_and_killed(self) -> None:
        async def steps(router: PassageRouter, client: Any) -> None:  # noqa: ANN401
            router.has_sent = trio.Event()
            router.answer = lambda _, request: Reply(usual_reply(request), wait=trio.sleep_forever)
            await client.send(EACH["find"](1))
            await router.has_sent.wait()
            second = await router.connect()
            pipeline = [{"$currentOp": {"localOps": True}}]
            shown = await exchange(
                second, command({"aggregate": 1, "pipeline": pipeline, "cursor": {}, "$db": "admin"})
            )
            assert shown is not None
            [running] = [each for each in bson.decode(shown[21:])["cursor"]["firstBatch"] if each.get("op") == "query"]
            assert running["command"]["filter"] == {"key": 1}
            await exchange(second, command({"killOp": 1, "op": running["opid"], "$db": "admin"}))
            reply = await client.receive()
            assert reply is not None
            assert bson.decode(reply[21:])["codeName"] == "Interrupted"
            router.answer = lambda _, request: usual_reply(request)
            assert await exchange(client, EACH["find"](1)) is not None

        learned(steps)

    @pytest.mark.parametrize("step", ["begin", "finish"])
    def test_an_internal_error_ends_one_connection(self, step: str, monkeypatch: pytest.MonkeyPatch) -> None:
        async def steps(router: PassageRouter, client: Any) -> None:  # noqa: ANN401
            def fail(*_: object) -> None:
                raise ZeroDivisionError

            with monkeypatch.context() as patched:
                patched.setattr(router.server.passages, step, fail)
                assert await exchange(client, EACH["find"](1)) is None
            second = await router.connect()
            assert await exchange(second, EACH["find"](1)) is not None
            await router.wait_until(lambda: not router.borrowed)

        learned(steps)

    def test_a_shutdown_during_an_operation(self) -> None:
        async def steps(router: PassageRouter, client: Any) -> None:  # noqa: ANN401
            may_answer = trio.Event()
            router.has_sent = trio.Event()
            router.answer = lambda _, request: Reply(usual_reply(request), wait=may_answer.wait)
            await client.send(EACH["update"](1))
            await router.has_sent.wait()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(router.server.drain, 5)
                await trio.testing.wait_all_tasks_blocked()
                may_answer.set()
                reply = await client.receive()
                assert reply is not None
                assert bson.decode(reply[21:])["ok"] == 1
                assert await client.receive() is None

        learned(steps)
