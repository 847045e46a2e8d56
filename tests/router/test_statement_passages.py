"""Passages for statements in transactions do not change requests, replies, counts or transactions."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast

import bson
import pytest
import trio
from bson import Binary, Int64
from bson.raw_bson import RawBSONDocument
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shardwright.router.transactions.router_transaction import Phase
from shardwright.sharding.transaction_protocol import AUTOCOMMIT, MAY_CHANGE_OWNER
from shardwright.wire.message import OpMsg
from shardwright.wire.read_preference import PRIMARY, ReadPreference
from shardwright.wire.request import Request
from tests.router.passage_router import (
    BY_KEY,
    START,
    PassageRouter,
    Reply,
    command,
    exchange,
    passage_router,
    times,
    usual_reply,
)
from tests.router.passage_users import ANN, BEN, control_access, log_in
from tests.router.test_passages import (
    BY_HASH,
    EVENTS,
    NOT_SHARDED,
    SESSION,
    Step,
    check_same,
    delete,
    drivers,
    find,
    insert,
    insert_in_body,
    merge,
    modify,
    update,
)
from tests.router.writes.builders import NAMESPACE

OTHER_SESSION = {"id": Binary(bytes(16), 4)}
ENDINGS = ("commitTransaction", "abortTransaction", "coordinateCommitTransaction")
SECONDARY = ReadPreference.parse({"mode": "secondary"})
HANDS_OVER = (MAY_CHANGE_OWNER.decode(),)

Make = Callable[..., bytes]

STATEMENTS: dict[str, Make] = {
    "find": lambda key, **fields: find(key, **fields),
    "insert": lambda key, **fields: insert({"_id": key, "key": key, "text": "x" * key}, **fields),
    "insert-in-body": lambda key, **fields: insert_in_body({"_id": key, "key": key, "text": "x" * key}, **fields),
    "update": lambda key, **fields: update({"key": key}, {"$inc": {"counter": key}}, **fields),
    "delete": lambda key, **fields: delete({"key": key}, **fields),
    "findAndModify": lambda key, **fields: modify({"key": key}, {"$set": {"v": key}}, **fields),
    "findAndRemove": lambda key, **fields: modify({"key": key}, None, **fields),
}


def of_transaction(number: int = 1, **more: Any) -> dict[str, Any]:  # noqa: ANN401 - any field of a command
    """Return the fields that a driver adds to a statement."""
    return {**drivers(number), "autocommit": False, **more}


def start(kind: str, key: int = 1, number: int = 1, **more: Any) -> bytes:  # noqa: ANN401
    return STATEMENTS[kind](key, **of_transaction(number, startTransaction=True, **more))


def follow(kind: str, key: int = 1, number: int = 1, **more: Any) -> bytes:  # noqa: ANN401
    return STATEMENTS[kind](key, **of_transaction(number, **more))


def end(name: str = "commitTransaction", number: int = 1, **more: Any) -> bytes:  # noqa: ANN401
    return command({name: 1, "$db": "admin", **of_transaction(number, **more)})


def reply_in_transaction(request: Request) -> dict[str, Any]:
    """Return the reply of a shard, which begins with ``readOnly`` for statements."""
    if AUTOCOMMIT not in request.fields or request.name in ENDINGS:
        return usual_reply(request)
    return {"readOnly": request.name == "find", **usual_reply(request)}


def answering(number: int = 1_000, reply: Any = None) -> Callable[[PassageRouter], None]:  # noqa: ANN401
    """Make shards answer statements. Statement ``number``, not counting commits and aborts, gets ``reply``."""

    def set_answer(router: PassageRouter) -> None:
        seen = 0

        def answer(_: str, request: Request) -> Any:  # noqa: ANN401
            nonlocal seen
            seen += request.name not in ENDINGS
            return reply if seen == number and request.name not in ENDINGS else reply_in_transaction(request)

        router.answer = answer

    return set_answer


check = partial(check_same, before=answering())


def kill_all(router: PassageRouter) -> None:
    """Abort the transactions as ``killAllSessions`` does, without its requests."""
    for transaction in router.context.transactions.open_in(None):
        transaction.phase = Phase.ABORTED


EVENTS_OF_TRANSACTIONS: dict[str, Callable[[PassageRouter], object]] = {**EVENTS, "killed": kill_all}


class TestSame:
    @pytest.mark.parametrize("kind", STATEMENTS)
    @pytest.mark.parametrize("routing", [BY_KEY, BY_HASH, NOT_SHARDED], ids=["range", "hashed", "not sharded"])
    @pytest.mark.parametrize("extensions", [(), HANDS_OVER], ids=["genuine", "ours"])
    def test_each_kind(self, kind: str, routing: Any, extensions: Sequence[str]) -> None:  # noqa: ANN401
        keys = (1, 99, 2, 98, 3, 97, 1)
        steps = [start(kind), *[follow(kind, key) for key in keys], end()]
        assert check(steps, routing=routing, extensions=extensions) >= 4

    def test_several_transactions(self) -> None:
        steps = []
        for number in range(1, 5):
            steps += [start("find", 1, number), follow("update", 2, number), follow("find", 3, number)]
            steps += [follow("update", 99, number), follow("update", 98, number), end(number=number)]
        # A passage is learned from the second statement of a layout. Statements that add a participant take none.
        assert check(steps) >= 6

    def test_reads_become_writes(self) -> None:
        steps = [start("find"), *[follow("find", key) for key in (2, 3, 4)], *[follow("update", 5)] * 4, end()]
        assert check(steps) == 3

    def test_a_participant_that_has_not_answered(self) -> None:
        steps = [start("update"), *[follow("update")] * 3, follow("update", 99), follow("update", 98), end()]
        assert check(steps) == 2

    @pytest.mark.parametrize(
        "more",
        [
            {"txnNumber": Int64(0)},
            {"txnNumber": Int64(2)},
            {"txnNumber": Int64(-1)},
            {"txnNumber": 1},
            {"autocommit": True},
            {"autocommit": 0},
            {"lsid": OTHER_SESSION},
            {"lsid": {**SESSION, "uid": Binary(bytes(32))}},
            {"lsid": {"uid": Binary(bytes(32)), **SESSION}},
            {"lsid": 1},
            {"startTransaction": True},
            {"startTransaction": False},
            {"readConcern": {}},
            {"readConcern": {"level": "snapshot"}},
            {"writeConcern": {"w": 1}},
            {"apiVersion": "1"},
            {"apiVersion": "1", "apiStrict": True},
            {"apiVersion": "2"},
            {"coordinator": True},
            {"recoveryToken": {}},
            {"stmtId": 3},
            {"maxTimeMS": 50_000},
            {"maxTimeMS": "a"},
            {"comment": "a"},
            {"$readPreference": {"mode": "secondary"}},
            {"$clusterTime": 1},
            {"$clusterTime": drivers(time=bson.Timestamp(START.time - 9, 1))["$clusterTime"]},
            {"$clusterTime": drivers(time=bson.Timestamp(START.time, START.inc + 7))["$clusterTime"]},
            {"help": True},
        ],
        ids=str,
    )
    @pytest.mark.parametrize("kind", ["find", "update"])
    def test_other_fields(self, kind: str, more: dict[str, Any]) -> None:
        usual = [follow(kind, key) for key in (1, 2, 3)]
        other = [follow(kind, key, **more) for key in (1, 2, 3)]
        assert check([start(kind), *usual, *other, *usual, end()]) >= 1

    @pytest.mark.parametrize("left_out", ["lsid", "txnNumber", "autocommit"])
    def test_missing_fields(self, left_out: str) -> None:
        fields = of_transaction()
        del fields[left_out]
        usual = [follow("update")] * 3
        assert check([start("update"), *usual, update({"key": 1}, {"$inc": {"counter": 1}}, **fields), *usual]) >= 1

    @pytest.mark.parametrize("api", [{}, {"apiVersion": "1"}])
    @pytest.mark.parametrize("other", [{}, {"apiVersion": "1"}, {"apiVersion": "1", "apiDeprecationErrors": True}])
    def test_api_parameters(self, api: dict[str, Any], other: dict[str, Any]) -> None:
        steps = [start("find", **api), *[follow("find", **other)] * 4, *[follow("find", **api)] * 4, end(**api)]
        assert check([*steps, start("find", number=2, **other), *[follow("find", number=2, **other)] * 2]) >= 2

    @pytest.mark.parametrize("level", ["local", "majority", "snapshot"])
    @pytest.mark.parametrize("kind", ["find", "update"])
    def test_read_concerns(self, level: str, kind: str) -> None:
        steps = [start(kind, readConcern={"level": level}), *[follow(kind)] * 5, end()]
        assert check(steps) == (0 if level == "snapshot" else 3)

    @pytest.mark.parametrize("ending", ["commitTransaction", "abortTransaction"])
    @pytest.mark.parametrize("kind", ["find", "update"])
    def test_statements_after_the_end(self, ending: str, kind: str) -> None:
        steps = [start(kind), *[follow(kind)] * 4, end(ending), follow(kind), start(kind, number=2), follow(kind)]
        assert check([*steps, follow(kind, number=2), follow(kind, number=3)]) == 3

    @pytest.mark.parametrize(
        "reply",
        [
            {**times(), "ok": 0.0, "errmsg": "no", "code": 112, "codeName": "WriteConflict"},
            {"ok": 0.0, "errmsg": "no", "code": 251, "codeName": "NoSuchTransaction"},
            {"ok": 0.0, "errmsg": "stale", "code": 13388, "codeName": "StaleConfig", "ns": NAMESPACE},
            {"ok": 0.0, "errmsg": "no", "code": 11000, "codeName": "DuplicateKey"},
            {"ok": 0.0, "errmsg": "no", "code": 11602, "codeName": "InterruptedDueToReplStateChange"},
            {"readOnly": False, "n": 1, "writeErrors": [{"index": 0, "code": 11000, "errmsg": "E"}], **times()},
            {"n": 1, **times()},
            {"n": 1, "readOnly": False, **times()},
            {"readOnly": True, "n": 0, **times()},
            {"readOnly": False, "n": 1, "ok": 1.0},
            {"readOnly": False, "n": 1, "nModified": 1, "changedOwner": {"document": {"key": 99}}, **times()},
            {"readOnly": True, "cursor": {"firstBatch": [], "id": Int64(55), "ns": NAMESPACE}, **times()},
            Reply({"readOnly": False, "n": 1, **times()}, (30,)),
        ],
        ids=lambda reply: "in pieces" if isinstance(reply, Reply) else str(reply),
    )
    @pytest.mark.parametrize("kind", ["find", "update", "findAndModify"])
    def test_unusual_replies(self, kind: str, reply: Any) -> None:  # noqa: ANN401
        document = reply.document if isinstance(reply, Reply) else reply
        if document is not None and document["ok"] and ("cursor" in document) != (kind == "find"):
            pytest.skip("not a reply to this command")
        steps = [start(kind), *[follow(kind, key) for key in (2, 3, 4, 5, 6)], end(), start(kind, number=2)]
        steps += [follow(kind, number=2), end(number=2)]
        assert check(steps, before=answering(5, reply), extensions=HANDS_OVER) >= 1

    @pytest.mark.parametrize("event", sorted(EVENTS_OF_TRANSACTIONS))
    @pytest.mark.parametrize("kind", ["find", "update", "insert"])
    def test_what_changes_is_obeyed_at_once(self, event: str, kind: str) -> None:
        steps: list[Step] = [start(kind), *[follow(kind, key) for key in (2, 3, 4)]]
        steps += [EVENTS_OF_TRANSACTIONS[event], *[follow(kind, key) for key in (5, 6, 7)], end()]
        assert check(steps) >= 1

    def test_shards_that_no_longer_hand_over(self) -> None:
        def forget(router: PassageRouter) -> None:
            for each in router.context.shards._shards.values():
                for member in each.client.monitor.members.values():
                    cast("Any", member).extensions = ()

        steps: list[Step] = [start("update"), *[follow("update")] * 4, forget, *[follow("update")] * 4, end()]
        assert check(steps, extensions=HANDS_OVER) == 5

    def test_a_cursor_in_a_transaction(self) -> None:
        batch = {"firstBatch": [{"_id": 1}], "id": Int64(55), "ns": NAMESPACE}
        more = {"getMore": Int64(1_000), "collection": NAMESPACE.split(".")[1], **of_transaction()}
        steps = [start("find"), *[follow("find")] * 5, *[command(more)] * 3, follow("find"), end()]
        answer = answering(5, {"readOnly": True, "cursor": batch, **times()})
        assert check(steps, before=answer) >= 2

    @pytest.mark.parametrize("kind", STATEMENTS)
    @pytest.mark.parametrize("lsid", [SESSION, {**SESSION, "uid": Binary(ANN.digest)}], ids=["usual", "owned"])
    def test_users(self, kind: str, lsid: dict[str, Any]) -> None:
        def control(router: PassageRouter) -> None:
            control_access(router)
            answering()(router)

        steps: list[Step] = [start(kind, lsid=lsid), *[follow(kind, key, lsid=lsid) for key in (1, 2, 3, 4)]]
        others: list[Step] = [partial(log_in, user=BEN), *[follow(kind, lsid=SESSION)] * 2, start(kind, lsid=SESSION)]
        steps += [*others, *[follow(kind, lsid=SESSION)] * 3, partial(log_in, user=ANN), follow(kind, lsid=lsid), end()]
        assert check_same(steps, before=control, connected=log_in) >= 3

    def test_statements_go_to_primaries_whatever_their_read_preference(self) -> None:
        def separate_secondaries(router: PassageRouter) -> None:
            answering()(router)
            east, west = (each.client.monitor for each in router.context.shards._shards.values())
            members = [*east.members, *west.members]
            for monitor, (primary, secondary) in ((east, members), (west, members[::-1])):
                cast("Any", monitor).select = {PRIMARY: primary, SECONDARY: secondary}.__getitem__

        more: dict[str, Any] = {"$readPreference": {"mode": "secondary"}}
        steps = [start("find"), follow("find", 99), *[follow("find", key, **more) for key in (1, 2, 98)], end()]
        assert check(steps, before=separate_secondaries) == 1

    def test_a_session_with_two_ids(self) -> None:
        def twice(session: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
            elements = bson.encode(session)[4:-1] + bson.encode(other)[4:-1]
            return {"lsid": RawBSONDocument((len(elements) + 5).to_bytes(4, "little") + elements + b"\0")}

        steps = [start("update"), start("update", lsid=OTHER_SESSION), *[follow("update")] * 3]
        steps += [follow("update", **twice(SESSION, SESSION))] * 3
        steps += [follow("update", **twice(OTHER_SESSION, SESSION))] * 3
        assert check([*steps, end(), end(lsid=OTHER_SESSION)]) == 1

    def test_finds_on_all_shards(self) -> None:
        steps = [start("update"), *[merge({"a": 1}, **of_transaction())] * 4, end()]
        assert check(steps) == 0

    def test_unacknowledged_and_several_statements(self) -> None:
        several = {"update": NAMESPACE.split(".")[1], "updates": [{"q": {"key": 1}, "u": {"$set": {"a": 1}}}] * 2}
        steps = [start("update"), *[command({**several, **of_transaction()})] * 4, end()]
        assert check(steps) == 0


@st.composite
def steps_of_transactions(draw: st.DrawFn) -> list[Step]:
    """Draw statements, ends and events from few values, so that layouts and transactions repeat."""
    number, kind = draw(st.integers(1, 3)), draw(st.sampled_from(sorted(STATEMENTS)))
    more: dict[str, Any] = draw(
        st.sampled_from(
            [
                *[{}] * 6,
                {"lsid": OTHER_SESSION},
                {"apiVersion": "1"},
                {"maxTimeMS": 60_000},
                {"comment": "a"},
                {"readConcern": {"level": "snapshot"}},
                {"autocommit": True},
            ]
        )
    )
    match draw(st.sampled_from(["start", "follow", "follow", "follow", "follow", "end", "event", "plain"])):
        case "start":
            return [start(kind, draw(st.sampled_from([1, 2, 99])), number, **more)]
        case "end":
            return [end(draw(st.sampled_from(ENDINGS[:2])), number, **more)]
        case "event":
            return [EVENTS_OF_TRANSACTIONS[draw(st.sampled_from(sorted(EVENTS_OF_TRANSACTIONS)))]]
        case "plain":
            return [STATEMENTS[kind](1, **drivers(number + 10))]
    return [follow(kind, draw(st.sampled_from([1, 2, 99])), number, **more)] * draw(st.integers(1, 4))


FAILURES: list[Any] = [
    {**times(), "ok": 0.0, "errmsg": "no", "code": 112, "codeName": "WriteConflict"},
    {"ok": 0.0, "errmsg": "stale", "code": 13388, "codeName": "StaleConfig", "ns": NAMESPACE},
    {"readOnly": True, "n": 0, **times()},
]


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.lists(steps_of_transactions(), min_size=4, max_size=12),
    st.integers(3, 12),
    st.sampled_from(FAILURES),
    st.sampled_from([(), HANDS_OVER]),
)
def test_passages_change_nothing(
    steps: list[list[Step]],
    number: int,
    failure: Any,  # noqa: ANN401
    extensions: Sequence[str],
) -> None:
    beginning: list[Step] = [start("find"), *[follow("find")] * 2, *[follow("update")] * 2]
    check(
        [*beginning, *[step for several in steps for step in several]],
        before=answering(number, failure),
        extensions=extensions,
    )


def learned(steps: Callable[[PassageRouter, Any], Any]) -> None:
    """Run steps on a router that has learned statements and has transaction 1 open."""

    async def main() -> None:
        async with passage_router() as router:
            answering()(router)
            client = await router.connect()
            await exchange(client, start("update"))
            for kind in ("find", "update"):
                for key in (1, 2, 3):
                    await exchange(client, follow(kind, key))
            assert router.taken == 2
            router.sent.clear()
            router.has_sent = trio.Event()
            await steps(router, client)
            await router.wait_until(lambda: not router.borrowed)
            assert all(each.is_idle for each in router.context.transactions.sessions.values())

    trio.run(main)


def hold(router: PassageRouter, event: trio.Event) -> None:
    """Delay the shards' answers to statements until an event."""

    def answer(_: str, request: Request) -> Reply:
        is_ending = request.name in ENDINGS
        return Reply(reply_in_transaction(request), wait=None if is_ending else event.wait)

    router.answer = answer


def decoded(reply: bytes | None) -> dict[str, Any]:
    assert reply is not None
    document: dict[str, Any] = bson.decode(reply[21:])
    return document


def names(router: PassageRouter) -> list[str]:
    """Return the names of the commands that shards have received."""
    return [Request(OpMsg(frame)).name for _, frame in router.sent]


class TestLane:
    def test_a_second_statement_of_the_session_waits(self) -> None:
        async def steps(router: PassageRouter, client: Any) -> None:  # noqa: ANN401
            may_answer = trio.Event()
            hold(router, may_answer)
            await client.send(follow("update", 1))
            await router.has_sent.wait()
            second = await router.connect()
            await second.send(follow("update", 2))
            await trio.testing.wait_all_tasks_blocked()
            assert len(router.sent) == 1
            may_answer.set()
            for each in (client, second):
                assert decoded(await each.receive())["ok"] == 1
            assert names(router) == ["update", "update"]

        learned(steps)

    def test_an_ordinary_statement_is_in_progress(self) -> None:
        async def steps(router: PassageRouter, client: Any) -> None:  # noqa: ANN401
            may_answer, taken = trio.Event(), router.taken
            hold(router, may_answer)
            await client.send(follow("delete", 1))
            await router.has_sent.wait()
            second = await router.connect()
            await second.send(follow("update", 2))
            await trio.testing.wait_all_tasks_blocked()
            assert len(router.sent) == 1
            may_answer.set()
            assert decoded(await client.receive())["ok"] == 1
            assert decoded(await second.receive())["ok"] == 1
            assert router.taken == taken

        learned(steps)

    def test_the_session_is_killed(self) -> None:
        async def steps(router: PassageRouter, client: Any) -> None:  # noqa: ANN401
            may_answer = trio.Event()
            hold(router, may_answer)
            await client.send(follow("update", 1))
            await router.has_sent.wait()
            kill_all(router)
            may_answer.set()
            reply = decoded(await client.receive())
            assert reply["codeName"] == "Interrupted"
            assert names(router) == ["update", "abortTransaction"]
            assert decoded(await exchange(client, follow("update", 1)))["codeName"] == "NoSuchTransaction"

        learned(steps)

    def test_a_client_that_leaves_during_its_statement(self) -> None:
        async def steps(router: PassageRouter, client: Any) -> None:  # noqa: ANN401
            may_answer = trio.Event()
            hold(router, may_answer)
            await client.send(follow("find", 1))
            await router.has_sent.wait()
            await client.stream.aclose()
            await trio.testing.wait_all_tasks_blocked()
            may_answer.set()
            await router.wait_until(lambda: not router.server.clients)
            second = await router.connect()
            answering()(router)
            assert decoded(await exchange(second, follow("find", 1)))["ok"] == 1  # the transaction is open

        learned(steps)

    def test_a_time_limit(self) -> None:
        async def steps(router: PassageRouter, client: Any) -> None:  # noqa: ANN401
            for _ in range(3):
                await exchange(client, follow("update", maxTimeMS=300))
            left = router.outcomes["left"]
            hold(router, trio.Event())
            reply = decoded(await exchange(client, follow("update", maxTimeMS=300)))
            assert reply["codeName"] == "MaxTimeMSExpired"
            assert router.outcomes["left"] == left + 1
            assert names(router)[-1] == "abortTransaction"
            answering()(router)
            assert decoded(await exchange(client, follow("update")))["codeName"] == "NoSuchTransaction"

        learned(steps)

    def test_a_running_statement_is_shown_and_killed(self) -> None:
        async def steps(router: PassageRouter, client: Any) -> None:  # noqa: ANN401
            hold(router, trio.Event())
            await client.send(follow("find", 1))
            await router.has_sent.wait()
            second = await router.connect()
            pipeline = [{"$currentOp": {"localOps": True, "idleSessions": True}}]
            query = command({"aggregate": 1, "pipeline": pipeline, "cursor": {}, "$db": "admin"})
            shown = decoded(await exchange(second, query))["cursor"]["firstBatch"]
            [running] = [each for each in shown if each.get("op") == "query"]
            assert running["transaction"]["parameters"]["txnNumber"] == 1
            assert not [each for each in shown if each["type"] == "idleSession"]
            await exchange(second, command({"killOp": 1, "op": running["opid"], "$db": "admin"}))
            assert decoded(await client.receive())["codeName"] == "Interrupted"
            assert names(router)[-1] == "abortTransaction"

        learned(steps)

    @pytest.mark.parametrize("kind", ["find", "update"])
    def test_a_shard_that_closes_its_connection(self, kind: str) -> None:
        async def steps(router: PassageRouter, client: Any) -> None:  # noqa: ANN401
            router.answer = lambda _, request: usual_reply(request) if request.name in ENDINGS else Reply(None)
            reply = decoded(await exchange(client, follow(kind, 1)))
            assert reply["codeName"] == "HostUnreachable"
            assert reply["errorLabels"] == ["TransientTransactionError"]
            assert names(router) == [kind, "abortTransaction"]  # a statement is never repeated

        learned(steps)

    @pytest.mark.parametrize("step", ["begin", "finish"])
    def test_an_internal_error_aborts_the_transaction(self, step: str, monkeypatch: pytest.MonkeyPatch) -> None:
        async def steps(router: PassageRouter, client: Any) -> None:  # noqa: ANN401
            def fail(*_: object) -> None:
                raise ZeroDivisionError

            with monkeypatch.context() as patched:
                patched.setattr(router.server.passages, step, fail)
                assert await exchange(client, follow("update", 1)) is None
            await router.wait_until(lambda: all(each.is_idle for each in router.context.transactions.sessions.values()))
            second = await router.connect()
            reply = decoded(await exchange(second, follow("update", 1)))
            assert reply.get("codeName", "ok") == ("NoSuchTransaction" if step == "finish" else "ok")
            assert ("abortTransaction" in names(router)) == (step == "finish")

        learned(steps)

    def test_after_an_internal_error_the_abort_has_the_session(self, monkeypatch: pytest.MonkeyPatch) -> None:
        async def steps(router: PassageRouter, client: Any) -> None:  # noqa: ANN401
            def fail(*_: object) -> None:
                raise ZeroDivisionError

            may_answer = trio.Event()
            hold(router, may_answer)
            await client.send(follow("update", 1))
            await router.has_sent.wait()
            second = await router.connect()
            await second.send(follow("update", 2))
            await trio.testing.wait_all_tasks_blocked()
            with monkeypatch.context() as patched:
                patched.setattr(router.server.passages, "_count_shape", fail)
                may_answer.set()
                assert await client.receive() is None
                assert decoded(await second.receive())["codeName"] == "NoSuchTransaction"
            assert names(router) == ["update", "abortTransaction"]

        learned(steps)

    def test_shards_that_no_longer_hand_over_during_a_statement(self) -> None:
        async def main() -> None:
            async with passage_router(extensions=HANDS_OVER) as router:
                answering()(router)
                client = await router.connect()
                for frame in (start("update"), *[follow("update")] * 3):
                    await exchange(client, frame)
                taken, may_answer = router.taken, trio.Event()
                moved = {"changedOwner": {"document": {"_id": 1, "key": 99}}}
                updated = {"readOnly": False, "n": 1, "nModified": 1, **moved, **times()}

                def answer(_: str, request: Request) -> Any:  # noqa: ANN401
                    is_update = request.name == "update"
                    return Reply(updated, wait=may_answer.wait) if is_update else reply_in_transaction(request)

                router.answer, router.has_sent = answer, trio.Event()
                router.sent.clear()
                await client.send(follow("update", 2))
                await router.has_sent.wait()
                for each in router.context.shards._shards.values():
                    for member in each.client.monitor.members.values():
                        cast("Any", member).extensions = ()
                may_answer.set()
                reply = decoded(await client.receive())
                assert (reply["ok"], reply["n"]) == (1, 1)
                assert "changedOwner" not in reply
                assert taken == router.taken >= 1
                assert names(router) == ["update", "insert"]
                assert [shard for shard, _ in router.sent] == ["east", "west"]

        trio.run(main)

    def test_a_shutdown_during_a_statement(self) -> None:
        async def steps(router: PassageRouter, client: Any) -> None:  # noqa: ANN401
            hold(router, trio.Event())
            await client.send(follow("update", 1))
            await router.has_sent.wait()
            await router.server.drain(0.1)
            assert decoded(await client.receive())["codeName"] == "InterruptedAtShutdown"
            assert names(router) == ["update", "abortTransaction"]

        learned(steps)

    def test_a_newer_transaction_of_the_session(self) -> None:
        async def steps(router: PassageRouter, client: Any) -> None:  # noqa: ANN401
            assert decoded(await exchange(client, start("update", number=2)))["ok"] == 1
            assert decoded(await exchange(client, follow("update", 1)))["codeName"] == "TransactionTooOld"
            taken = router.taken
            assert decoded(await exchange(client, follow("update", 1, 2)))["ok"] == 1
            assert router.taken == taken + 1

        learned(steps)
