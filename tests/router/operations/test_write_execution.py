"""Executing a batch against shards that answer from a script."""

from collections.abc import Callable
from functools import partial
from typing import Any

import bson
import pytest
from bson.int64 import Int64
from bson.objectid import ObjectId
from bson.timestamp import Timestamp

from shardwright.router.operations import write_execution
from shardwright.router.replies.reply_builder import Reply
from shardwright.router.writes.batch import WriteKind
from shardwright.sharding.routing_table import RoutingTable
from shardwright.sharding.versions import IGNORED, UNSHARDED
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.message import OpMsg
from shardwright.wire.request import Request
from tests import both_ways
from tests.router.operations.fake_router import ALL_SHARDS, OK, TOPOLOGY_TIME, Answer, FakeRouter, statements_sent
from tests.router.writes.builders import request, table

pytestmark = pytest.mark.usefixtures("both_ways_of_running")

BY_K = table({"k": 1}, [{"k": 0}, {"k": 100}], ("west", "east", "north"))
MOVED = table({"k": 1}, [{"k": 0}, {"k": 100}], ("north", "east", "north"))
BY_X = table({"x": 1}, [{"x": 0}, {"x": 100}], ("west", "east", "north"))

STALE = {"index": 0, "code": 13388, "errmsg": "version mismatch detected"}
HOST_UNREACHABLE = CommandError(6, "gone")
RETRYABLE: dict[str, Any] = {"lsid": {"id": bson.Binary(bytes(16), 4)}, "txnNumber": Int64(1)}


def documents(*keys: int) -> list[dict[str, Any]]:
    """Documents to insert."""
    return [{"_id": key, "k": key} for key in keys]


def run(router: FakeRouter, kind: WriteKind, statements: list[dict[str, Any]], **arguments: object) -> Any:  # noqa: ANN401
    """The decoded reply to a write command."""

    async def run_it() -> Reply:
        return await router.run(kind, statements, **arguments)

    reply = both_ways.run(run_it)
    assert reply is not None
    return bson.decode(OpMsg(reply).body) if isinstance(reply, bytes) else bson.decode(bson.encode(reply))


def counting(shard: str, received: Request) -> Answer:
    """A shard that executes every request."""
    return {"n": len(received.message.sequences[0].documents), "ok": 1.0}


def test_batch_for_one_shard_passes_in_the_clients_bytes() -> None:
    def answer(shard: str, received: Request) -> Answer:
        return {
            "n": 2,
            "electionId": ObjectId(bytes(12)),
            "opTime": {"ts": Timestamp(1, 1), "t": 1},
            "ok": 1.0,
            "$clusterTime": {"clusterTime": Timestamp(9, 9)},
            "operationTime": Timestamp(9, 9),
        }

    router = FakeRouter([BY_K], answer)
    reply = run(router, WriteKind.INSERT, documents(1, 2), comment="mine", **RETRYABLE)
    assert list(reply) == ["n", "ok", "$clusterTime", "operationTime"]
    ((shard, received),) = router.sent
    sent = request(WriteKind.INSERT, documents(1, 2), comment="mine", **RETRYABLE)
    assert shard == "east"
    assert received.body[4:-1] == sent.body[4:-1] + BY_K.shard_version_element("east")
    assert received.message.sequences[0].data == sent.message.sequences[0].data
    assert router.may_repeat == [True]


def test_unsharded_batch_goes_to_the_primary_shard_unread() -> None:
    router = FakeRouter([None], counting)
    run(router, WriteKind.UPDATE, [{"q": {}, "u": {"$set": {"x": 1}}, "unknown": 1}])
    ((shard, received),) = router.sent
    assert shard == "east"
    assert received.document["shardVersion"] == UNSHARDED.to_document()
    assert received.document["databaseVersion"]["lastMod"] == 1
    assert router.may_repeat == [False]


def test_batch_is_divided_and_each_part_has_its_shards_version() -> None:
    router = FakeRouter([BY_K], counting)
    assert run(router, WriteKind.INSERT, documents(-1, 1, -2, 101), ordered=False) == {"n": 4}
    assert dict(statements_sent(router, b"documents")) == {
        "west": documents(-1, -2),
        "east": documents(1),
        "north": documents(101),
    }
    for shard, received in router.sent:
        assert received.document["shardVersion"] == BY_K.shard_version(shard).to_document()


def test_broadcast_goes_to_all_shards_of_the_cluster_with_versions_ignored() -> None:
    router = FakeRouter([BY_K], counting)
    assert run(router, WriteKind.DELETE, [{"q": {}, "limit": 0}]) == {"n": 4}
    assert sorted(shard for shard, _ in router.sent) == list(ALL_SHARDS)
    assert all(received.document["shardVersion"] == IGNORED.to_document() for _, received in router.sent)
    assert all(received.document["$topologyTime"] == TOPOLOGY_TIME for _, received in router.sent)


def test_broadcast_goes_to_a_shard_that_it_was_told_of_too() -> None:
    def answer(shard: str, received: Request) -> Answer:
        router.shard_ids = (*ALL_SHARDS, "up")
        return {"n": 1, "ok": 1.0}

    router = FakeRouter([BY_K], answer)
    assert run(router, WriteKind.DELETE, [{"q": {}, "limit": 0}]) == {"n": 5}
    assert sorted(shard for shard, _ in router.sent) == sorted((*ALL_SHARDS, "up"))


def no_config_servers() -> CommandError:
    return CommandError(ErrorCode.HostUnreachable, "the config servers are not reachable")


def test_broadcast_that_was_executed_is_told_even_if_others_cannot_be_known() -> None:
    def answer(shard: str, received: Request) -> Answer:
        router.shard_ids = no_config_servers()
        return counting(shard, received)

    for ordered in (True, False):
        router = FakeRouter([BY_K], answer)
        reply = run(router, WriteKind.DELETE, [{"q": {}, "limit": 0}, {"q": {"x": 1}, "limit": 0}], ordered=ordered)
        executed = 1 if ordered else 2
        assert reply["n"] == 4 * executed
        assert [(error["index"], error["code"]) for error in reply["writeErrors"]] == [(n, 6) for n in range(executed)]
        assert len(router.sent) == 4


def test_broadcast_whose_shards_cannot_be_known_fails() -> None:
    router = FakeRouter([BY_K], counting)
    router.shard_ids = no_config_servers()
    with pytest.raises(CommandError, match="not reachable"):
        run(router, WriteKind.DELETE, [{"q": {}, "limit": 0}])
    assert router.sent == []


def test_broadcast_that_a_new_shard_fails_is_told_with_what_the_others_did() -> None:
    def answer(shard: str, received: Request) -> Answer:
        router.shard_ids = (*ALL_SHARDS, "up")
        return CommandError(ErrorCode.HostUnreachable, "gone") if shard == "up" else {"n": 1, "ok": 1.0}

    router = FakeRouter([BY_K], answer)
    reply = run(router, WriteKind.DELETE, [{"q": {}, "limit": 0}])
    assert reply["n"] == 4
    assert [(error["index"], error["code"]) for error in reply["writeErrors"]] == [(0, 6)]


def test_broadcast_is_not_repeated_on_the_shard_that_executed_it() -> None:
    """After a refresh that leaves only that shard as a target, the statement must not be sent to it again."""
    refused: set[str] = set()

    def answer(shard: str, received: Request) -> Answer:
        if shard == "north" and shard not in refused:
            refused.add(shard)
            return {"n": 0, "nModified": 0, "writeErrors": [STALE], "ok": 1.0}
        return {"n": 1, "nModified": 1, "ok": 1.0}

    all_on_west = table({"k": 1}, [{"k": 0}, {"k": 100}], ("west", "west", "west"))
    router = FakeRouter([BY_K, all_on_west], answer)
    update = {"q": {}, "u": {"$inc": {"x": 1}}, "multi": True}
    assert run(router, WriteKind.UPDATE, [update]) == {"nModified": 4, "n": 4}
    assert sorted(shard for shard, _ in router.sent) == sorted((*ALL_SHARDS, "north"))


def by_id(*ids: int) -> list[dict[str, Any]]:
    """Updates by ``_id``, whose shard is unknown."""
    return [{"q": {"_id": each}, "u": {"$inc": {"v": 1}}} for each in ids]


def rounds(*answers: Answer) -> Callable[[str, Request], Answer]:
    """In each round ``east`` gives the next answer; the other shards find nothing."""
    left = list(answers)
    return lambda shard, received: left.pop(0) if shard == "east" else {"n": 0, "nModified": 0, "ok": 1.0}


FOUND = {"n": 1, "nModified": 1, "ok": 1.0}
NOT_FOUND = {"n": 0, "nModified": 0, "ok": 1.0}


def test_what_is_nowhere_is_looked_for_once_if_nothing_has_moved() -> None:
    router = FakeRouter([BY_K], rounds(NOT_FOUND))
    assert run(router, WriteKind.UPDATE, by_id(1)) == {"n": 0, "nModified": 0}
    assert sorted(shard for shard, _ in router.sent) == list(ALL_SHARDS)
    assert router.log == ["read routing", "read latest routing"]


@pytest.mark.parametrize("arguments", [{}, RETRYABLE])
def test_what_may_have_moved_meanwhile_is_looked_for_again(arguments: dict[str, Any]) -> None:
    router = FakeRouter([BY_K, MOVED], rounds(NOT_FOUND, FOUND))
    assert run(router, WriteKind.UPDATE, by_id(1), **arguments) == {"n": 1, "nModified": 1}
    assert sorted(shard for shard, _ in router.sent) == sorted([*ALL_SHARDS, *ALL_SHARDS])
    assert len({received.body for _, received in router.sent}) == 1  # the same statement id, if any


def test_the_placement_is_that_of_before_the_statement_was_sent() -> None:
    stale = dict(NOT_FOUND, n=0, writeErrors=[STALE])
    router = FakeRouter([BY_K, MOVED], rounds(stale, NOT_FOUND, NOT_FOUND))
    assert run(router, WriteKind.UPDATE, by_id(1))["n"] == 0
    assert sorted(shard for shard, _ in router.sent) == sorted([*ALL_SHARDS, "east", *ALL_SHARDS])


def test_it_is_looked_for_a_bounded_number_of_times() -> None:
    tables = [table({"k": 1}, [{"k": split}], ("west", "east")) for split in range(20)]
    router = FakeRouter(tables, rounds(*[NOT_FOUND] * 5))
    assert run(router, WriteKind.UPDATE, by_id(1))["n"] == 0
    assert len(router.sent) == 5 * len(ALL_SHARDS)


@pytest.mark.parametrize("session", [RETRYABLE, {}])
def test_some_of_a_batch_that_may_have_moved_are_looked_for_again(session: dict[str, Any]) -> None:
    again = {"n": 2, "nModified": 2, "retriedStmtIds": [0], "ok": 1.0}
    router = FakeRouter([BY_K, MOVED], rounds(FOUND, again))
    reply = run(router, WriteKind.UPDATE, by_id(1, 2), ordered=False, **session)
    assert reply == {"n": 2, "nModified": 2}
    assert all("txnNumber" in received.document for _, received in router.sent)


def test_some_of_a_batch_for_many_documents_are_not_as_others_would_be_executed_twice() -> None:
    router = FakeRouter([BY_K, MOVED], rounds(FOUND))
    statements = [*by_id(1), {"q": {"x": 1}, "u": {"$set": {"x": 2}}, "multi": True}]
    assert run(router, WriteKind.UPDATE, statements, ordered=False)["n"] == 1
    assert len(router.sent) == len(ALL_SHARDS)


@pytest.mark.parametrize("executor", [FOUND, {**FOUND, "retriedStmtIds": [0]}])
def test_a_statement_that_two_shards_know_as_executed_counts_once(executor: dict[str, Any]) -> None:
    def answer(shard: str, received: Request) -> Answer:
        return {"east": executor, "west": {**FOUND, "retriedStmtIds": [0]}}.get(shard, NOT_FOUND)

    reply = run(FakeRouter([BY_K], answer), WriteKind.UPDATE, by_id(1), **RETRYABLE)
    assert reply == {"n": 1, "nModified": 1, "retriedStmtIds": [0]}
    assert run(FakeRouter([BY_K], answer), WriteKind.UPDATE, by_id(1)) == {"n": 1, "nModified": 1}


@pytest.mark.parametrize("error", [HOST_UNREACHABLE, RuntimeError("cancelled")])
def test_a_session_in_which_a_shard_may_still_be_writing_is_not_used_again(error: Exception) -> None:
    """The next write in it would wait for that one."""

    def answer(shard: str, received: Request) -> Answer:
        if shard == "east" and len(sessions()) == 1:
            if isinstance(error, CommandError):
                return error
            raise error
        return {"n": 0, "ok": 1.0}

    def sessions() -> list[bytes]:
        return list(dict.fromkeys(bson.encode(received.document["lsid"]) for _, received in router.sent))

    router = FakeRouter([BY_K], answer)
    if isinstance(error, CommandError):
        assert [each["code"] for each in run(router, WriteKind.UPDATE, by_id(1))["writeErrors"]] == [error.code]
    else:
        with pytest.RaisesGroup(RuntimeError):
            run(router, WriteKind.UPDATE, by_id(1))
    for _ in range(2):
        assert run(router, WriteKind.UPDATE, by_id(2)) == {"n": 0, "nModified": 0}
    assert len(sessions()) == 2


def test_a_change_of_shard_in_an_ordered_batch_takes_no_task(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(write_execution, "scatter")
    router = FakeRouter([BY_K], counting)
    reply = run(router, WriteKind.INSERT, documents(*(number * (-1) ** number for number in range(1, 51))))
    assert (reply["n"], len(router.sent)) == (50, 50)


def test_refused_statements_go_where_they_are_now() -> None:
    def answer(shard: str, received: Request) -> Answer:
        if shard == "west":
            return {"n": 0, "writeErrors": [STALE, {**STALE, "index": 1}], "ok": 1.0}
        return counting(shard, received)

    router = FakeRouter([BY_K, MOVED], answer)
    assert run(router, WriteKind.INSERT, documents(-1, 1, -2), ordered=False) == {"n": 3}
    first, second, last = statements_sent(router, b"documents")
    assert {first[0]: first[1], second[0]: second[1]} == {"west": documents(-1, -2), "east": documents(1)}
    assert last == ("north", documents(-1, -2))
    assert router.log == ["read routing", "invalidate", "read routing"]


def test_stale_batch_for_one_shard_is_sent_again() -> None:
    def answer(shard: str, received: Request) -> Answer:
        if shard == "west":
            return {"n": 1, "writeErrors": [{**STALE, "index": 1}], "ok": 1.0}
        return OK

    router = FakeRouter([BY_K, MOVED], answer)
    assert run(router, WriteKind.INSERT, documents(-1, -2)) == {"n": 2}
    assert statements_sent(router, b"documents") == [("west", documents(-1, -2)), ("north", documents(-2))]


def test_batch_for_a_shard_that_was_removed_is_sent_again() -> None:
    def answer(shard: str, received: Request) -> Answer:
        return CommandError(70, "Shard west not found") if shard == "west" else OK

    router = FakeRouter([BY_K, MOVED], answer)
    assert run(router, WriteKind.INSERT, documents(-1)) == {"n": 1}
    assert [shard for shard, _ in router.sent] == ["west", "north"]


def test_stale_database_is_read_again() -> None:
    replies: list[Answer] = [OK, {"ok": 0.0, "code": 249, "errmsg": "stale"}]
    router = FakeRouter([None], lambda shard, received: replies.pop())
    assert run(router, WriteKind.INSERT, documents(1)) == {"n": 1}
    assert router.log == ["read routing", "invalidate database shop", "invalidate", "read routing"]


def test_statement_that_cannot_be_targeted_has_the_routing_read_again() -> None:
    router = FakeRouter([BY_X, BY_K], counting)
    upsert = {"q": {"k": 1}, "u": {"$set": {"y": 1}}, "upsert": True}
    assert run(router, WriteKind.UPDATE, [upsert])["n"] == 1
    assert router.log == ["read routing", "forget", "read routing"]
    assert [shard for shard, _ in router.sent] == ["east"]


def test_statement_that_cannot_be_targeted_has_the_routing_read_again_once() -> None:
    router = FakeRouter([BY_X], counting)
    upsert = {"q": {"k": 1}, "u": {"$set": {"y": 1}}, "upsert": True}
    reply = run(router, WriteKind.UPDATE, [upsert, {"q": {"x": 1}, "u": {"$set": {"y": 1}}}], ordered=False)
    assert reply["n"] == 1
    assert [(error["index"], error["code"]) for error in reply["writeErrors"]] == [(0, 61)]
    assert router.log == ["read routing", "forget", "read routing"]


def test_unreachable_only_shard_fails_the_command() -> None:
    router = FakeRouter([BY_K], lambda shard, received: HOST_UNREACHABLE)
    with pytest.raises(CommandError, match="gone"):
        run(router, WriteKind.INSERT, documents(1))


def west_is_gone(shard: str, received: Request) -> Answer:
    """Answer on all shards but one."""
    return HOST_UNREACHABLE if shard == "west" else counting(shard, received)


def test_unreachable_shard_fails_its_statements() -> None:
    reply = run(FakeRouter([BY_K], west_is_gone), WriteKind.INSERT, documents(-1, 1, -2), ordered=False)
    assert reply["n"] == 1
    assert [(error["index"], error["code"]) for error in reply["writeErrors"]] == [(0, 6), (2, 6)]


def test_unreachable_shard_fails_a_retryable_command_so_that_drivers_send_it_again() -> None:
    with pytest.raises(CommandError) as raised:
        run(FakeRouter([BY_K], west_is_gone), WriteKind.INSERT, documents(-1, 1, -2), ordered=False, **RETRYABLE)
    assert raised.value is HOST_UNREACHABLE


def test_command_that_all_shards_refuse_fails_as_a_whole() -> None:
    refusal = {"ok": 0.0, "code": 40415, "errmsg": "BSON field 'insert.wrong' is an unknown field."}
    with pytest.raises(CommandError) as raised:
        run(FakeRouter([BY_K], lambda shard, received: refusal), WriteKind.INSERT, documents(-1, 1), wrong=1)
    assert raised.value.code == 40415


def test_refusal_of_the_only_shard_is_passed_on() -> None:
    refusal = {"ok": 0.0, "code": 73, "codeName": "InvalidNamespace", "errmsg": "Invalid system namespace"}
    assert run(FakeRouter([None], lambda shard, received: refusal), WriteKind.INSERT, documents(1)) == refusal


def test_routing_that_cannot_be_read_again_fails_what_is_left() -> None:
    def answer(shard: str, received: Request) -> Answer:
        return {"n": 1, "writeErrors": [{**STALE, "index": 1}], "ok": 1.0}

    router = FakeRouter([BY_K, CommandError(6, "no config server")], answer)
    reply = run(router, WriteKind.INSERT, documents(-1, -2, -3), ordered=False)
    assert reply["n"] == 1
    assert [(error["index"], error["code"]) for error in reply["writeErrors"]] == [(1, 6)]


def test_routing_that_cannot_be_read_again_fails_a_command_that_did_nothing_yet() -> None:
    def answer(shard: str, received: Request) -> Answer:
        return {"n": 0, "writeErrors": [STALE], "ok": 1.0}

    with pytest.raises(CommandError, match="no config server"):
        run(FakeRouter([BY_K, CommandError(6, "no config server")], answer), WriteKind.INSERT, documents(-1, -2))


@pytest.mark.parametrize("keys", [(1, 2), (-1, 1)])
def test_unacknowledged_write_is_told_nothing(keys: tuple[int, ...]) -> None:
    router = FakeRouter([BY_K], counting)
    assert run(router, WriteKind.INSERT, documents(*keys), writeConcern={"w": 0}) == {}
    assert all(received.document["writeConcern"] == {"w": 1} for _, received in router.sent)


def test_write_concern_error_of_the_only_shard_names_it() -> None:
    concern = {"code": 64, "codeName": "WriteConcernFailed", "errmsg": "timed out", "errInfo": {"wtimeout": True}}
    router = FakeRouter([BY_K], lambda shard, received: {"n": 1, "writeConcernError": concern, "ok": 1.0})
    reply = run(router, WriteKind.INSERT, documents(1))
    assert reply["writeConcernError"]["errmsg"] == "timed out; Error details: { wtimeout: true } at east"


def test_malformed_statement_fails_the_command() -> None:
    router = FakeRouter([BY_K], counting)
    with pytest.raises(CommandError) as raised:
        run(router, WriteKind.UPDATE, [{"q": {"k": 1}, "u": {"$set": {"x": 1}}}, {"q": {"k": 1}}])
    assert raised.value.code == 40414
    assert router.sent == []


def test_statement_that_is_no_bson_fails_the_command() -> None:
    broken = request(WriteKind.INSERT, documents(1))
    frame = bytearray(broken.message.frame)
    at = frame.rindex(b"\x10k\0")
    frame[at] = 0x20  # no BSON type
    router = FakeRouter([BY_K], counting)
    with pytest.raises(CommandError) as raised:
        both_ways.run(partial(router.run_request, WriteKind.INSERT, Request(OpMsg(bytes(frame)))))
    assert raised.value.code == 22


STEPPED_DOWN = {"index": 0, "code": 189, "errmsg": "Not primary while writing to shop.orders"}


@pytest.mark.parametrize("keys", [(1,), (1, -1)], ids=["one shard", "two shards"])
def test_retryable_batch_fails_as_a_whole_if_a_primary_steps_down(keys: tuple[int, ...]) -> None:
    """Drivers retry such a batch only if the command fails, not because of the errors of its statements."""

    def answer(shard: str, received: Request) -> Answer:
        return {"n": 0, "writeErrors": [STEPPED_DOWN], "ok": 1.0} if shard == "east" else {"n": 1, "ok": 1.0}

    with pytest.raises(CommandError, match="Not primary while writing") as caught:
        run(FakeRouter([BY_K], answer), WriteKind.INSERT, documents(*keys), **RETRYABLE)
    assert caught.value.code == ErrorCode.PrimarySteppedDown


def test_other_batch_reports_the_statement_during_which_a_primary_steps_down() -> None:
    def answer(shard: str, received: Request) -> Answer:
        return {"n": 0, "writeErrors": [STEPPED_DOWN], "ok": 1.0}

    reply = run(FakeRouter([BY_K], answer), WriteKind.INSERT, documents(1))
    assert reply["writeErrors"] == [STEPPED_DOWN]


@pytest.mark.parametrize(
    ("kind", "statements"), [(WriteKind.INSERT, documents(1, 2, 3)), (WriteKind.INSERT, documents(1))]
)
@pytest.mark.parametrize("routing", [None, BY_K], ids=["unsharded", "sharded"])
def test_statements_are_counted(
    kind: WriteKind, statements: list[dict[str, Any]], routing: RoutingTable | None
) -> None:
    router = FakeRouter([routing], lambda _shard, request: {**OK, "n": len(request.documents(b"documents"))})
    assert run(router, kind, statements)["n"] == len(statements)
    assert router.statement_counts[kind] == len(statements)


def test_batch_that_a_shard_refuses_does_not_count() -> None:
    router = FakeRouter([None], lambda _shard, _request: {"ok": 0.0, "code": 16, "errmsg": "no statements"})
    assert run(router, WriteKind.INSERT, [])["code"] == 16
    assert router.statement_counts[WriteKind.INSERT] == 0
