"""The course of a batch: rounds, refusals, failures.

As a property, the reply to a split batch equals one server's.
"""

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import bson
import pytest
from bson.int64 import Int64
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwright.router.writes import batch as batch_module
from shardwright.router.writes.batch import WriteBatch, WriteKind
from shardwright.router.writes.outcome import WriteReply
from shardwright.router.writes.run import WriteRun
from shardwright.router.writes.targeted_batch import ShardBatch, broadcast_elements, shard_message, target_batch
from shardwright.wire import rawbson
from shardwright.wire.errors import CommandError
from shardwright.wire.message import OpMsg
from shardwright.wire.request import Request
from tests.router.writes.builders import NAMESPACE, batch, request, table
from tests.router.writes.model import POISON, ModelServer
from tests.sampling import many

SHARDS = ("west", "east", "north")
ROUTING = table({"k": 1}, [{"k": 5}, {"k": 10}], SHARDS)
NEVER: Callable[[], bool] = lambda: False  # noqa: E731 - a default to pass around

STALE = {"code": 13388, "errmsg": "version mismatch detected"}


def reply_of(document: dict[str, Any]) -> WriteReply:
    """A shard's reply as the run receives it."""
    body = bson.encode(document)
    return WriteReply.read(body, rawbson.index(body))


def decoded(reply: dict[str, Any]) -> dict[str, Any]:
    """A run's reply as the client receives it."""
    return bson.decode(bson.encode(reply))


def next_round(run: WriteRun, writes: WriteBatch) -> dict[str, ShardBatch]:
    """The next round by shard."""
    return {part.shard: part for part in run.next_round(target_batch(writes, ROUTING, "west").by_statement, SHARDS)}


def inserts(*keys: int, **arguments: object) -> WriteBatch:
    """An insert of documents with these keys."""
    return batch(WriteKind.INSERT, [{"_id": key, "k": key, "v": 0} for key in keys], **arguments)


def deletes(*queries: dict[str, Any], **arguments: object) -> WriteBatch:
    """A delete of everything that matches each of the queries."""
    return batch(WriteKind.DELETE, [{"q": query, "limit": 0} for query in queries], **arguments)


# Rounds


def test_ordered_rounds_take_the_longest_run_for_one_shard() -> None:
    writes = inserts(1, 2, 6, 7, 3)
    run = WriteRun(writes)
    taken = []
    while not run.is_finished:
        parts = next_round(run, writes)
        for part in parts.values():
            taken.append((part.shard, part.positions))
            run.record(part, reply_of({"n": len(part.positions)}))
        run.end_round(NAMESPACE, SHARDS)
    assert taken == [("west", [0, 1]), ("east", [2, 3]), ("west", [4])]
    assert run.reply() == {"n": 5}


def test_unordered_round_takes_everything() -> None:
    writes = inserts(1, 2, 6, 11, 7, 3, ordered=False)
    parts = next_round(WriteRun(writes), writes)
    assert {shard: part.positions for shard, part in parts.items()} == {
        "west": [0, 1, 5],
        "east": [2, 4],
        "north": [3],
    }


def test_broadcast_goes_alone_in_an_ordered_batch() -> None:
    writes = deletes({"k": 1}, {}, {"k": 2})
    run = WriteRun(writes)
    assert list(next_round(run, writes)) == ["west"]
    run.end_round(NAMESPACE, SHARDS)
    parts = next_round(run, writes)
    assert {shard: (part.positions, part.is_broadcast) for shard, part in parts.items()} == {
        shard: ([1], True) for shard in SHARDS
    }


def test_broadcasts_wait_for_the_rest_in_an_unordered_batch() -> None:
    writes = deletes({}, {"k": 1}, {}, ordered=False)
    run = WriteRun(writes)
    first = next_round(run, writes)
    assert [(part.shard, part.positions, part.is_broadcast) for part in first.values()] == [("west", [1], False)]
    run.record(first["west"], reply_of({"n": 1}))
    run.end_round(NAMESPACE, SHARDS)
    second = next_round(run, writes)
    assert {shard: part.positions for shard, part in second.items()} == {shard: [0, 2] for shard in SHARDS}
    for part in second.values():
        run.record(part, reply_of({"n": 2}))
    run.end_round(NAMESPACE, SHARDS)
    assert run.is_finished
    assert run.reply() == {"n": 7}


@pytest.mark.parametrize("ordered", [True, False])
def test_messages_are_limited_in_size(monkeypatch: pytest.MonkeyPatch, ordered: bool) -> None:
    writes = inserts(1, 2, 3, 4, ordered=ordered)
    room = len(writes.divided_body) + 2 * (len(writes.statements[0]) + batch_module.STATEMENT_ID_BYTES_MAX)
    monkeypatch.setattr(batch_module, "MESSAGE_BYTES_MAX", room + batch_module._COMMAND_BYTES_RESERVED)
    run = WriteRun(writes)
    assert next_round(run, writes)["west"].positions == [0, 1]
    run.end_round(NAMESPACE, SHARDS)
    assert next_round(run, writes)["west"].positions == [2, 3]


def test_nothing_overtakes_what_had_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    documents: list[dict[str, object]] = [{"_id": 1, "k": 1}, {"_id": 2, "k": 2, "s": "x" * 500}, {"_id": 3, "k": 3}]
    writes = batch(WriteKind.INSERT, documents, ordered=False)
    room = len(writes.divided_body) + 2 * (len(writes.statements[0]) + batch_module.STATEMENT_ID_BYTES_MAX)
    monkeypatch.setattr(batch_module, "MESSAGE_BYTES_MAX", room + batch_module._COMMAND_BYTES_RESERVED)
    run = WriteRun(writes)
    taken = []
    while not run.is_finished:
        taken.append(next_round(run, writes)["west"].positions)
        run.end_round(NAMESPACE, SHARDS)
    assert taken == [[0], [1], [2]]


def test_statement_larger_than_any_message_is_sent_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_module, "MESSAGE_BYTES_MAX", 1)
    for writes in (inserts(1, 2), inserts(1, 2, ordered=False)):
        assert next_round(WriteRun(writes), writes)["west"].positions == [0]
    writes = deletes({}, {})
    assert next_round(WriteRun(writes), writes)["west"].positions == [0]


# Refusals and failures


def test_refused_statements_are_sent_again() -> None:
    writes = inserts(1, 2, 3)
    run = WriteRun(writes)
    run.record(next_round(run, writes)["west"], reply_of({"n": 1, "writeErrors": [{"index": 1, **STALE}]}))
    run.end_round(NAMESPACE, SHARDS)
    assert run.refusals == {13388}
    assert not run.is_finished
    part = next_round(run, writes)["west"]
    assert part.positions == [1, 2]
    run.record(part, reply_of({"n": 2}))
    run.end_round(NAMESPACE, SHARDS)
    assert run.reply() == {"n": 3}


def test_whole_command_refused() -> None:
    writes = inserts(1, 6, ordered=False)
    run = WriteRun(writes)
    parts = next_round(run, writes)
    run.record(parts["east"], reply_of({"n": 1}))
    run.record_failure(parts["west"], CommandError(249, "stale database"))
    run.end_round(NAMESPACE, SHARDS)
    assert run.refusals == {249}
    assert {shard: part.positions for shard, part in next_round(run, writes).items()} == {"west": [0]}


def test_broadcast_is_not_repeated_where_it_was_done() -> None:
    writes = deletes({})
    run = WriteRun(writes)
    parts = next_round(run, writes)
    run.record(parts["west"], reply_of({"n": 3}))
    run.record_failure(parts["east"], CommandError(13388, "stale"))
    run.record(parts["north"], reply_of({"n": 0, "writeErrors": [{"index": 0, **STALE}]}))
    run.end_round(NAMESPACE, SHARDS)
    again = next_round(run, writes)
    assert sorted(again) == ["east", "north"]
    for part in again.values():
        run.record(part, reply_of({"n": 1}))
    run.end_round(NAMESPACE, SHARDS)
    assert run.is_finished
    assert run.reply() == {"n": 5}


def test_broadcast_to_a_shard_that_was_removed() -> None:
    writes = deletes({})
    run = WriteRun(writes)
    parts = next_round(run, writes)
    run.record(parts["west"], reply_of({"n": 3}))
    run.record(parts["east"], reply_of({"n": 2}))
    run.record_failure(parts["north"], CommandError(70, "Shard north not found"))
    run.end_round(NAMESPACE, SHARDS)
    destinations = target_batch(writes, ROUTING, "west").by_statement
    assert run.next_round(destinations, ("west", "east")) == []
    run.end_round(NAMESPACE, ("west", "east"))
    assert run.is_finished
    assert run.reply() == {"n": 5}


def steps_of(writes: WriteBatch) -> int:
    """Count the bytecode instructions of a batch's rounds."""
    destinations = target_batch(writes, ROUTING, "west").by_statement
    steps = 0

    def count(frame: FrameType, event: str, argument: object) -> Any:  # noqa: ANN401 - a trace function
        nonlocal steps
        frame.f_trace_opcodes = True
        steps += event == "opcode"
        return count

    earlier = sys.gettrace()
    sys.settrace(count)
    try:
        run = WriteRun(writes)
        while not run.is_finished:
            for part in run.next_round(destinations, SHARDS):
                shard_message(writes, part, b"")
                run.record(part, WriteReply(n=len(part.positions)))
            run.end_round(NAMESPACE, SHARDS)
    finally:
        sys.settrace(earlier)
    return steps


@pytest.mark.parametrize("make", [lambda count: inserts(*[1, 6] * count), lambda count: deletes(*[{"v": 1}] * count)])
def test_a_round_costs_the_same_however_long_the_batch_is(make: Callable[[int], WriteBatch]) -> None:
    assert steps_of(make(160)) < 2.1 * steps_of(make(80))


def test_broadcast_with_different_errors() -> None:
    writes = deletes({}, {"k": 1})
    run = WriteRun(writes)
    parts = next_round(run, writes)
    run.record(parts["west"], reply_of({"n": 0, "writeErrors": [{"index": 0, "code": 2, "errmsg": "bad"}]}))
    run.record(parts["east"], reply_of({"n": 4}))
    run.record_failure(parts["north"], CommandError(6, "gone"))
    run.end_round(NAMESPACE, SHARDS)
    assert run.is_finished
    reply = decoded(run.reply())
    assert reply["n"] == 4
    assert [(error["index"], error["code"]) for error in reply["writeErrors"]] == [(0, 65)]


def test_ordered_failure_of_a_shard_fails_its_first_statement_only() -> None:
    writes = inserts(1, 2, 6)
    run = WriteRun(writes)
    run.record_failure(next_round(run, writes)["west"], CommandError(13, "not authorized"))
    run.end_round(NAMESPACE, SHARDS)
    assert run.is_finished
    assert decoded(run.reply()) == {
        "n": 0,
        "writeErrors": [{"index": 0, "code": 13, "errmsg": "not authorized"}],
    }


def test_unordered_failure_of_a_shard_fails_all_its_statements() -> None:
    writes = inserts(1, 6, 2, ordered=False)
    run = WriteRun(writes)
    parts = next_round(run, writes)
    run.record_failure(parts["west"], CommandError(6, "gone"))
    run.record(parts["east"], reply_of({"n": 1}))
    run.end_round(NAMESPACE, SHARDS)
    assert [error["index"] for error in decoded(run.reply())["writeErrors"]] == [0, 2]


def test_statement_that_cannot_be_targeted_ends_an_ordered_batch() -> None:
    writes = batch(WriteKind.INSERT, [{"k": 1}, {"k": [1]}, {"k": 2}])
    run = WriteRun(writes)
    run.record(next_round(run, writes)["west"], reply_of({"n": 1}))
    run.end_round(NAMESPACE, SHARDS)
    assert next_round(run, writes) == {}
    run.end_round(NAMESPACE, SHARDS)
    assert run.is_finished
    reply = decoded(run.reply())
    assert reply["n"] == 1
    assert [(error["index"], error["code"]) for error in reply["writeErrors"]] == [(1, 61)]


def test_no_progress_gives_up() -> None:
    writes = inserts(1, 2, ordered=False)
    run = WriteRun(writes)
    for _ in range(6):
        assert not run.is_finished
        run.record_failure(next_round(run, writes)["west"], CommandError(13388, "stale"))
        run.end_round(NAMESPACE, SHARDS)
    assert run.is_finished
    errors = decoded(run.reply())["writeErrors"]
    assert [(error["index"], error["code"]) for error in errors] == [(0, 82), (1, 82)]
    assert errors[0]["errmsg"] == (
        "no progress was made executing batch write op in shop.orders after 5 rounds "
        "(0 ops completed in 6 rounds total)"
    )


def test_move_to_another_shard_is_refused() -> None:
    would_change = {"code": 283, "errmsg": "would change", "preImage": {}, "postImage": {}, "shouldUpsert": False}
    for count, code in ((1, 20), (2, 72)):
        writes = batch(WriteKind.UPDATE, [{"q": {"k": 1}, "u": {"$set": {"k": 9}}}] * count)
        run = WriteRun(writes)
        part = next_round(run, writes)["west"]
        run.record(part, reply_of({"n": 0, "nModified": 0, "writeErrors": [{"index": 0, **would_change}]}))
        run.end_round(NAMESPACE, SHARDS)
        reply = decoded(run.reply())
        assert [(error["index"], error["code"]) for error in reply["writeErrors"]] == [(0, code)]
        assert "preImage" not in reply["writeErrors"][0]


CONCERN = {"code": 64, "codeName": "WriteConcernFailed", "errmsg": "waiting for replication timed out", "errInfo": {}}


@pytest.mark.parametrize(("ordered", "told"), [(True, False), (False, True)])
def test_write_concern_error_beside_item_errors(ordered: bool, told: bool) -> None:
    writes = inserts(1, 2, ordered=ordered)
    run = WriteRun(writes)
    failed = {"index": 1, "code": 11000, "errmsg": "E11000"}
    run.record(
        next_round(run, writes)["west"], reply_of({"n": 1, "writeErrors": [failed], "writeConcernError": CONCERN})
    )
    run.end_round(NAMESPACE, SHARDS)
    assert ("writeConcernError" in run.reply()) is told


def test_retried_statements_are_told_together() -> None:
    writes = inserts(6, 1, ordered=False, lsid={"id": bson.Binary(bytes(16), 4)}, txnNumber=Int64(1))
    run = WriteRun(writes)
    parts = next_round(run, writes)
    run.record(parts["west"], reply_of({"n": 1, "retriedStmtIds": [1]}))
    run.record(parts["east"], reply_of({"n": 1, "retriedStmtIds": [0]}))
    run.end_round(NAMESPACE, SHARDS)
    assert run.reply() == {"n": 2, "retriedStmtIds": [0, 1]}


def test_unacknowledged_batch_is_told_nothing() -> None:
    writes = inserts(1, writeConcern={"w": 0})
    run = WriteRun(writes)
    run.record(next_round(run, writes)["west"], reply_of({"n": 1}))
    run.end_round(NAMESPACE, SHARDS)
    assert run.reply() == {}


# The reply to a split batch equals that of one server

KEYS = st.integers(0, 15)
INSERT = st.builds(lambda key: {"_id": key, "k": key, "v": 0}, KEYS)
UPDATE = st.builds(
    lambda key, by, upsert: {"q": {"k": key}, "u": {"$inc": {"v": by}}, "upsert": upsert},
    KEYS,
    st.integers(0, 2),
    st.booleans(),
)
UPDATE_ALL = st.just({"q": {}, "u": {"$inc": {"v": 1}}, "multi": True})
DELETE = st.builds(lambda key: {"q": {"k": key}, "limit": 1}, KEYS)
DELETE_ALL = st.just({"q": {}, "limit": 0})

ORDERED = st.one_of(
    st.tuples(st.just(WriteKind.INSERT), st.lists(INSERT, min_size=1, max_size=12)),
    st.tuples(st.just(WriteKind.UPDATE), st.lists(UPDATE | UPDATE_ALL, min_size=1, max_size=12)),
    st.tuples(st.just(WriteKind.DELETE), st.lists(DELETE | DELETE_ALL, min_size=1, max_size=12)),
)
# Unordered statements for all shards may be executed after the others, so they are not mixed.
UNORDERED = st.one_of(
    st.tuples(st.just(WriteKind.INSERT), st.lists(INSERT, min_size=1, max_size=12)),
    st.tuples(st.just(WriteKind.UPDATE), st.lists(UPDATE, min_size=1, max_size=12)),
    st.tuples(st.just(WriteKind.UPDATE), st.lists(UPDATE_ALL, min_size=1, max_size=4)),
    st.tuples(st.just(WriteKind.DELETE), st.lists(DELETE, min_size=1, max_size=12)),
)
STORED = st.sets(KEYS.filter(lambda key: key != POISON))


class Shards:
    """Three model shards behind `ROUTING`, which refuse statements or whole commands as drawn."""

    def __init__(self, stored: set[int], draw: st.DataObject) -> None:
        self.servers = {shard: ModelServer() for shard in SHARDS}
        for key in stored:
            shard = ROUTING.shard_for_key(ROUTING.key_pattern.key_bytes_of_document(bson.encode({"k": key})))
            self.servers[shard].documents[key] = {"_id": key, "k": key, "v": 0}
        self._draw = draw
        self._refusals_left = 4

    def run(self, writes: WriteBatch) -> dict[str, Any]:
        """Run a whole batch."""
        run = WriteRun(writes)
        while not run.is_finished:
            for part in next_round(run, writes).values():
                versions = broadcast_elements(0, 0) if part.is_broadcast else b""
                self._send(run, part, Request(OpMsg(shard_message(writes, part, versions))))
            run.end_round(NAMESPACE, SHARDS)
        return decoded(run.reply())

    def _send(self, run: WriteRun, part: ShardBatch, sent: Request) -> None:
        if self._refuses():
            run.record_failure(part, CommandError(249, "stale database version"))
        else:
            run.record(part, reply_of(self.servers[part.shard].execute(sent, self._refuses)))

    def _refuses(self) -> bool:
        if not self._refusals_left or not self._draw.draw(st.booleans()):
            return False
        self._refusals_left -= 1
        return True


@settings(max_examples=many(300, 100), deadline=None)
@given(
    commands=st.booleans().flatmap(lambda ordered: st.tuples(st.just(ordered), ORDERED if ordered else UNORDERED)),
    stored=STORED,
    statements_per_message=st.integers(1, 6),
    draw=st.data(),
)
def test_divided_batch_answers_like_one_server(
    commands: tuple[bool, tuple[WriteKind, list[dict[str, Any]]]],
    stored: set[int],
    statements_per_message: int,
    draw: st.DataObject,
) -> None:
    ordered, (kind, statements) = commands
    single = ModelServer()
    single.documents = {key: {"_id": key, "k": key, "v": 0} for key in stored}
    expected = single.execute(request(kind, statements, ordered=ordered))

    shards = Shards(stored, draw)
    session: dict[str, Any] = {"lsid": {"id": bson.Binary(bytes(16), 4)}, "txnNumber": Int64(1)}
    writes = batch(kind, statements, ordered=ordered, **session)
    size = max(map(len, writes.statements)) + batch_module.STATEMENT_ID_BYTES_MAX
    with pytest.MonkeyPatch.context() as patch:
        limit = len(writes.divided_body) + batch_module._COMMAND_BYTES_RESERVED + statements_per_message * size
        patch.setattr(batch_module, "MESSAGE_BYTES_MAX", limit)
        reply = shards.run(writes)

    assert reply | {"ok": 1.0} == expected
    assert {key: each for server in shards.servers.values() for key, each in server.documents.items()} == (
        single.documents
    )
    for server in shards.servers.values():
        assert len(server.executed) == len(set(server.executed)), "a statement was executed twice"
