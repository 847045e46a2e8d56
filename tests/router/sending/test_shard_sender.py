"""Sending to a shard whose members answer from a script."""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import bson
import pytest
import trio
from bson.timestamp import Timestamp

from shardwright.router.sending.shard_sender import DigestRelay, ShardSender
from shardwright.sharding.clock import VectorClock, VectorTime
from shardwright.sharding.cluster_time import TimeSigner, pack_timestamp
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import BackendError, CommandError, ConnectFailedError, ConnectionClosedError
from shardwright.wire.message import OpMsg, op_msg
from tests import both_ways

if TYPE_CHECKING:
    from shardwright.router.replies.shard_reply import ShardReply

FRAME = op_msg(bson.encode({"ping": 1, "$db": "admin"}), request_id=7)
OK = {"ok": 1.0}
NOT_PRIMARY = {"ok": 0.0, "code": int(ErrorCode.NotWritablePrimary), "errmsg": "not primary"}
INTERRUPTED = {"n": 1, "writeConcernError": {"code": int(ErrorCode.ShutdownInProgress), "errmsg": "ends"}, **OK}
TIMED_OUT = {"n": 1, "writeConcernError": {"code": int(ErrorCode.WriteConcernFailed), "errmsg": "late"}, **OK}
REFUSED = ConnectFailedError("a:1", "refused", sent=False)
BROKEN = ConnectionClosedError("a:1", "closed the connection", sent=True)

Answer = Mapping[str, Any] | BackendError


class FakeShard:
    """A shard, its client, its monitor, its pool and the requests to it, in one.

    Args:
        answers: its members' replies, in order.

    Attributes:
        sent: the requests, decoded.
        failures: the errors reported to its client.
        given_up: how many requests were given up before they were answered.
        is_relayed: whether a relay passes the answer on.
    """

    id = "shard0"

    def __init__(self, answers: Iterable[Answer]) -> None:
        self.client = self.monitor = self
        self.answers = list(answers)
        self.sent: list[dict[str, Any]] = []
        self.failures: list[Exception] = []
        self.given_up = 0
        self.is_relayed = False
        self.has_spare = True

    def select(self, _preference: object) -> str:
        return "a:1"

    def on_failure(self, address: str, error: Exception) -> None:
        assert address == "a:1"
        self.failures.append(error)

    def has_spare_connections(self, _address: str) -> bool:
        return self.has_spare

    async def exchange(self, frame: bytes) -> bytes:
        self.sent.append(bson.decode(OpMsg(frame).body))
        return self._answer()

    async def ask(self, _address: str, frame: bytes) -> "FakeShard":
        self.sent.append(bson.decode(OpMsg(frame).body))
        answer = self.answers[0]
        if isinstance(answer, ConnectFailedError):
            raise answer
        return self

    async def receive_answer(self, relay: object) -> bytes | None:
        return None if self.is_relayed and relay is not None else self._answer()

    def give_up(self) -> None:
        self.given_up += 1

    def _answer(self) -> bytes:
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return op_msg(bson.encode(answer), request_id=1)


class FakeShards:
    """One shard, which is known or found when the list is reread."""

    def __init__(self, shard: FakeShard) -> None:
        self._shard = shard
        self.is_known = True

    def get_known(self, shard_id: str) -> FakeShard | None:
        return self._shard if self.is_known and shard_id == self._shard.id else None

    async def get(self, shard_id: str) -> FakeShard:
        if shard_id != self._shard.id:
            raise CommandError(ErrorCode.ShardNotFound, f"Shard {shard_id} not found")
        return self._shard

    async def get_with_removed(self, shard_id: str) -> FakeShard:
        return await self.get(shard_id)


def sender_to(shard: FakeShard, clock: VectorClock | None = None) -> ShardSender:
    """A sender that knows one shard."""
    shards: Any = FakeShards(shard)
    return ShardSender(shards, cast("Any", {"a:1": shard}), clock or VectorClock(), TimeSigner(), cast("Any", {}))


def run(work: Callable[[], Awaitable[None]]) -> None:
    """Run a test in a task."""

    async def main() -> None:
        await work()

    trio.run(main)


@pytest.mark.usefixtures("both_ways_of_running")
@pytest.mark.parametrize(
    ("answers", "may_repeat", "requests"),
    [
        ([OK], False, 1),
        ([REFUSED, OK], False, 2),
        ([REFUSED, REFUSED, OK], False, 3),
        ([BROKEN, OK], True, 2),
        ([NOT_PRIMARY, NOT_PRIMARY, OK], True, 3),
        ([INTERRUPTED, INTERRUPTED, OK], True, 3),
        ([INTERRUPTED, TIMED_OUT], True, 2),
        ([TIMED_OUT], True, 1),
        ([TIMED_OUT], False, 1),
    ],
)
def test_a_request_is_sent_again_if_it_was_not_executed_or_may_be_repeated(
    answers: list[Answer], may_repeat: bool, requests: int
) -> None:
    shard = FakeShard(answers)
    reply = both_ways.run(lambda: sender_to(shard).send("shard0", FRAME, may_repeat=may_repeat))
    assert (reply.shard_id, reply.address, reply.error) == ("shard0", "a:1", None)
    assert len(shard.sent) == requests
    assert len(shard.failures) == requests - 1


@pytest.mark.parametrize(("may_repeat", "requests"), [(False, 1), (True, 3)])
def test_an_interrupted_wait_is_passed_on_in_the_end(may_repeat: bool, requests: int) -> None:
    shard = FakeShard([INTERRUPTED] * requests)
    reply = both_ways.run(lambda: sender_to(shard).send("shard0", FRAME, may_repeat=may_repeat))
    assert reply.document == INTERRUPTED
    assert len(shard.sent) == requests


@pytest.mark.parametrize(("answers", "may_repeat"), [([BROKEN], False), ([REFUSED] * 3, False), ([BROKEN] * 3, True)])
def test_a_shard_that_cannot_be_reached_fails_the_request(answers: list[Answer], may_repeat: bool) -> None:
    shard = FakeShard(answers)

    async def send() -> None:
        with pytest.raises(CommandError, match="Error contacting shard shard0 :: caused by :: a:1: ") as failed:
            await sender_to(shard).send("shard0", FRAME, may_repeat=may_repeat)
        assert failed.value.code == ErrorCode.HostUnreachable

    run(send)
    assert shard.answers == []


@pytest.mark.parametrize("answers", [[NOT_PRIMARY], [REFUSED, NOT_PRIMARY]])
def test_a_refusal_is_the_reply_to_what_may_not_be_repeated(answers: list[Answer]) -> None:
    shard = FakeShard(answers)

    async def send() -> None:
        reply = await sender_to(shard).send("shard0", FRAME)
        assert reply.error is not None
        assert reply.error.code == ErrorCode.NotWritablePrimary

    run(send)
    assert len(shard.failures) == len(answers)


def test_the_clock_advances_to_the_times_of_a_reply() -> None:
    shard, clock = FakeShard([{**OK, "$configTime": Timestamp(9, 1)}]), VectorClock()

    async def send() -> None:
        await sender_to(shard, clock).send("shard0", FRAME)

    run(send)
    assert clock.time.config_time == pack_timestamp(Timestamp(9, 1))


def test_a_command_tells_how_far_this_router_knows_the_catalog() -> None:
    time = Timestamp(5, 2)
    shard = FakeShard([{"n": 1, **OK}, OK])

    async def send() -> None:
        sender = sender_to(shard, VectorClock(VectorTime(config_time=pack_timestamp(time))))
        assert (await sender.command("shard0", "test", {"count": "c"}))["n"] == 1
        await sender_to(shard).command("shard0", "test", {"count": "c"})

    run(send)
    assert shard.sent == [{"count": "c", "$configTime": time, "$db": "test"}, {"count": "c", "$db": "test"}]


def test_a_command_that_fails_raises_its_error() -> None:
    async def send() -> None:
        with pytest.raises(CommandError, match="not primary"):
            await sender_to(FakeShard([NOT_PRIMARY])).command("shard0", "test", {"count": "c"})

    run(send)


def test_an_unknown_shard_is_looked_for_before_it_is_refused() -> None:
    shard = FakeShard([OK])

    async def send() -> None:
        shards = FakeShards(shard)
        shards.is_known = False
        sender = ShardSender(
            cast("Any", shards), cast("Any", {"a:1": shard}), VectorClock(), TimeSigner(), cast("Any", {})
        )
        assert (await sender.send("shard0", FRAME)).error is None
        with pytest.raises(CommandError, match="Shard other not found"):
            await sender.send("other", FRAME)
        assert not sender.may_ask_ahead("shard0", "a:1")

    run(send)


def test_a_reply_can_be_read_later_or_given_up() -> None:
    shard = FakeShard([{**OK, "n": 5}])

    async def ask() -> None:
        sender = sender_to(shard)
        assert sender.may_ask_ahead("shard0", "a:1")
        pending = await sender.ask("shard0", "a:1", FRAME)
        assert (await pending.receive()).get(b"n") == 5
        shard.answers.append(OK)
        (await sender.ask("shard0", "a:1", FRAME)).give_up()
        assert shard.given_up == 1

    run(ask)


@pytest.mark.parametrize("error", [REFUSED, BROKEN])
def test_a_member_that_cannot_be_asked_or_does_not_answer_is_out_of_reach(error: BackendError) -> None:
    shard = FakeShard([error])

    async def ask() -> None:
        with pytest.raises(CommandError, match="Error contacting shard shard0") as failed:
            await (await sender_to(shard).ask("shard0", "a:1", FRAME)).receive()
        assert failed.value.code == ErrorCode.HostUnreachable

    run(ask)
    assert shard.failures == ([error] if error.sent else [])  # of the other its client knows


def test_a_reply_that_was_passed_on_is_known_by_its_digest() -> None:
    shard = FakeShard([OK])
    shard.is_relayed = True
    relay = DigestRelay(cast("Any", SimpleNamespace(stream=None)))
    relay.digest = op_msg(bson.encode({**OK, "digest": True}), request_id=2)

    async def ask() -> None:
        pending = await sender_to(shard).ask("shard0", "a:1", FRAME)
        assert (await pending.receive(relay)).get(b"digest") is True

    run(ask)


@pytest.mark.usefixtures("both_ways_of_running")
@pytest.mark.parametrize(
    ("answers", "requests"),
    [([OK], 1), ([BROKEN, OK], 2), ([NOT_PRIMARY, OK], 2), ([REFUSED, OK], 3), ([BROKEN] * 3 + [OK], 4)],
)
def test_all_shards_are_asked_and_a_lost_request_is_sent_again(answers: list[Answer], requests: int) -> None:
    async def check() -> None:
        shard = FakeShard(answers)
        replies: dict[str, ShardReply] = {}
        await sender_to(shard).send_to_all({"shard0": FRAME}, replies)
        assert replies["shard0"].document == OK
        assert len(shard.sent) == requests

    run(check)


def test_a_shard_that_cannot_be_reached_does_not_keep_others_from_answering() -> None:
    async def check() -> None:
        shard = FakeShard([OK])
        replies: dict[str, ShardReply] = {}
        await sender_to(shard).send_to_all({"removed": FRAME, "shard0": FRAME}, replies)
        error = replies["removed"].error
        assert error is not None
        assert error.code == ErrorCode.ShardNotFound
        assert replies["shard0"].error is None

    run(check)


def test_requests_that_were_not_answered_are_given_up() -> None:
    async def check() -> None:
        shard = FakeShard([BROKEN, OK])
        shard.answers[0] = cast("Any", RuntimeError("not a failure of the shard"))
        other = FakeShard([OK])
        sender = ShardSender(
            cast("Any", TwoShards(shard, other)), cast("Any", {}), VectorClock(), TimeSigner(), cast("Any", {})
        )
        with pytest.raises(RuntimeError):
            await sender.send_to_all({"shard0": FRAME, "shard1": FRAME}, {})
        assert (shard.given_up, other.given_up) == (0, 1)

    run(check)


class TwoShards:
    """Knows two shards."""

    def __init__(self, first: FakeShard, second: FakeShard) -> None:
        self._shards = {"shard0": first, "shard1": second}

    def get_known(self, shard_id: str) -> FakeShard | None:
        return self._shards.get(shard_id)
