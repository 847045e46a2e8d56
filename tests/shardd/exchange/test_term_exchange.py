"""Replies to a client whose operation was executed in another term than the one of its admission."""

import socket
import sys
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING, Any, cast

import bson
import pytest
import trio
from bson import ObjectId

from shardwright.daemon.sidecar.hello import HelloMirror
from shardwright.daemon.sidecar.mongod import REPLICATION_DATA, Upstream
from shardwright.daemon.sidecar.role_certainty import RoleCertainty, seconds_since_boot
from shardwright.shardd.exchange.term_exchange import OperationGeneration, TermExchange, is_linearizable
from shardwright.wire.errors import BackendError
from shardwright.wire.message import MORE_TO_COME, OpMsg, op_msg
from shardwright.wire.request import Request
from shardwright.wire.transport.client import Connection
from shardwright.wire.transport.reactor import in_own_task
from shardwright.wire.transport.stream import FrameStream
from tests import both_ways
from tests.transports import new_transport

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

    from shardwright.daemon.sidecar.sidecar import Sidecar

pytestmark = pytest.mark.usefixtures("both_ways_of_running")

PROCESS = ObjectId()
VERSION = {"e": ObjectId(), "t": bson.Timestamp(1, 1), "v": bson.Timestamp(1, 0)}
INSERT = {"insert": "c", "documents": [{}], "$db": "d", "shardVersion": VERSION}
FIND = {"find": "c", "$db": "d", "shardVersion": VERSION}


def hello(counter: int, term: int | None) -> dict[str, Any]:
    version = {"processId": PROCESS, "counter": counter}
    election = {} if term is None else {"electionId": ObjectId(f"7fffffff{term:016x}")}
    return {"topologyVersion": version, "isWritablePrimary": term is not None, **election}


class FakeMongod:
    """A sidecar and an upstream in one: gives the test's answers, and records requests."""

    def __init__(self, term: int | None = 3) -> None:
        self.mirror = HelloMirror("m:1", "d:1")
        self.mirror.meet(hello(1, term))
        self.certainty = RoleCertainty(self.mirror, trio.sleep_forever)
        self.certainty.settle(term)
        self.mongod = self
        self.socket_path = "/mongod"
        self.reply: dict[str, Any] = {"ok": 1.0}
        self.meanwhile: Callable[[], None] = lambda: None
        self.sent: list[dict[str, Any]] = []
        self.is_open = True
        self.while_opening: Callable[[], None] = lambda: None
        self.noted: list[bytes] = []

    def note_reply(self, reply: bytes) -> None:
        self.noted.append(reply)

    async def open(self) -> None:
        await in_own_task()  # as connecting does
        self.while_opening()

    async def forward(self, frame: bytes, flags: int, may_begin: Callable[[], bool] | None = None) -> bytes:
        self.sent.append(bson.decode(OpMsg(frame).body))
        self.meanwhile()
        return op_msg(bson.encode(self.reply), request_id=2, response_to=1)

    pass_on = forward

    def elect(self, term: int | None) -> None:
        self.mirror.observe(hello(2, term))
        self.certainty.settle(term)

    def run(self, command: dict[str, Any], *, must_report_term: bool) -> dict[str, Any]:
        sidecar, upstream = cast("Sidecar", self), cast("Upstream", self)
        exchange = TermExchange(
            sidecar, upstream, OperationGeneration(), must_report_term=must_report_term, is_whole=False
        )
        reply = both_ways.run(partial(exchange.run, request_of(command)))
        assert reply is not None
        return bson.decode(OpMsg(reply).body)


def request_of(command: dict[str, Any]) -> Request:
    return Request(OpMsg(op_msg(bson.encode(command), request_id=1)))


def told(term: int) -> dict[str, Any]:
    return {REPLICATION_DATA: {"term": bson.Int64(term)}}


def test_a_write_in_its_own_term_is_answered_without_the_term_fields() -> None:
    mongod = FakeMongod()
    mongod.reply = {"n": 1, "ok": 1.0, **told(3)}
    assert mongod.run(INSERT, must_report_term=True) == {"n": 1, "ok": 1.0}
    assert mongod.sent == [{"insert": "c", "documents": [{}], "$db": "d", REPLICATION_DATA: 1}]


@pytest.mark.parametrize(
    "reply", [{"n": 1, "ok": 1.0, **told(5)}, {"n": 1, "ok": 1.0}, {"ok": 0.0, "code": 11000, **told(5)}]
)
def test_a_write_in_another_term_is_not_acknowledged(reply: dict[str, Any]) -> None:
    mongod = FakeMongod()
    mongod.reply = reply
    with pytest.raises(BackendError):
        mongod.run(INSERT, must_report_term=True)


@pytest.mark.parametrize("reply", [{"ok": 0.0, "code": 10107, **told(4)}, {"ok": 0.0, "code": 59}])
def test_an_error_that_means_nothing_was_done_is_returned(reply: dict[str, Any]) -> None:
    mongod = FakeMongod()
    mongod.reply = reply
    assert mongod.run(INSERT, must_report_term=True)["code"] == reply["code"]


def test_a_read_in_another_term_is_not_answered() -> None:
    mongod = FakeMongod()
    mongod.meanwhile = lambda: mongod.elect(5)
    with pytest.raises(BackendError):
        mongod.run(FIND, must_report_term=False)


@pytest.mark.parametrize("term", [5, None])
def test_a_write_is_not_sent_if_its_term_ended_before(term: int | None) -> None:
    mongod = FakeMongod()
    mongod.is_open = False
    mongod.while_opening = lambda: mongod.elect(term)
    with pytest.raises(BackendError) as caught:
        mongod.run(INSERT, must_report_term=True)
    assert not caught.value.sent
    assert mongod.sent == []


def test_no_further_step_of_a_write_is_sent_in_another_term() -> None:
    mongod = FakeMongod()
    sidecar, upstream = cast("Sidecar", mongod), cast("Upstream", mongod)
    exchange = TermExchange(sidecar, upstream, OperationGeneration(), must_report_term=True, is_whole=False)
    step = op_msg(bson.encode({"update": "c", "$db": "d"}), request_id=1)

    async def run_steps() -> None:
        await exchange.forward(step, 0)
        mongod.elect(5)
        await exchange.forward(step, 0)

    with pytest.raises(BackendError):
        trio.run(run_steps)
    assert len(mongod.sent) == 1


def test_a_read_that_waited_is_sent_if_mongod_is_a_secondary_now() -> None:
    mongod = FakeMongod()
    mongod.is_open = False
    mongod.while_opening = lambda: mongod.elect(None)
    mongod.reply = {"ok": 0.0, "code": 13435}
    assert mongod.run(FIND, must_report_term=False)["code"] == 13435


def test_a_read_is_answered_when_mongod_has_become_a_secondary() -> None:
    # As in MongoDB, reads survive a step-down. mongod itself refuses those that only a primary may answer.
    mongod = FakeMongod()
    mongod.meanwhile = lambda: mongod.elect(None)
    assert mongod.run(FIND, must_report_term=False)["ok"] == 1


def test_a_read_during_which_a_secondary_was_elected_is_answered() -> None:
    mongod = FakeMongod(term=None)
    mongod.meanwhile = lambda: mongod.elect(5)
    assert mongod.run(FIND, must_report_term=False)["ok"] == 1


def test_the_term_is_not_requested_for_a_read() -> None:
    mongod = FakeMongod()
    mongod.run(FIND, must_report_term=False)
    assert mongod.sent == [{"find": "c", "$db": "d"}]


@pytest.mark.parametrize(("level", "expected"), [("linearizable", True), ("majority", False)])
def test_reads_that_promise_the_newest_state(level: str, *, expected: bool) -> None:
    assert is_linearizable(request_of({**FIND, "readConcern": {"level": level}})) is expected


CALLS_MAX = 12
"""Python calls between the last reading of the clock and the sending, in which a pause is not noticed: about 1 µs."""


def test_little_is_executed_between_the_last_check_and_the_sending(monkeypatch: pytest.MonkeyPatch) -> None:
    """A daemon that is paused there through two elections sends its operation in an unknown term."""
    mongod = FakeMongod()
    calls: list[str] = []
    counts: list[int] = []

    def read_clock() -> float:
        calls.clear()
        return seconds_since_boot()

    class SendingSocket(socket.socket):
        def send(self, data: "ReadableBuffer", flags: int = 0) -> int:
            counts.append(len(calls))
            return super().send(data, flags)

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            calls.append(frame.f_code.co_qualname)

    async def send() -> None:
        upstream = Upstream.__new__(Upstream)
        connection = Connection(new_transport(), "/mongod", FrameStream(ours))
        monkeypatch.setattr(upstream, "_connection", connection, raising=False)
        exchange = TermExchange(
            cast("Sidecar", mongod), upstream, OperationGeneration(), must_report_term=False, is_whole=True
        )
        unacknowledged = op_msg(bson.encode({**INSERT, "writeConcern": {"w": 0}}), request_id=1, flags=MORE_TO_COME)
        sys.setprofile(note)
        try:
            await exchange.run(Request(OpMsg(unacknowledged)))
        finally:
            sys.setprofile(None)

    monkeypatch.setattr(mongod.certainty, "_clock", read_clock)
    near, far = socket.socketpair()
    with far, SendingSocket(fileno=near.detach()) as ours:
        ours.setblocking(False)
        trio.run(send)
    assert len(counts) == 1
    assert 0 < counts[0] <= CALLS_MAX, calls
