"""A client of a replica set whose members lose connections, step down, or freeze."""

from collections.abc import Callable, Iterable
from functools import partial
from types import SimpleNamespace
from typing import Any

import bson
import pytest
import trio
import trio.testing

from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import BackendError, CommandError
from shardwright.wire.read_preference import PRIMARY_PREFERRED
from shardwright.wire.transport.client import decode_reply
from shardwright.wire.transport.replica_set import ReplicaSetClient
from tests.wire.raw_connection import op_msg_frame

MEMBER = "member:27017"

Answer = Callable[[], dict[str, Any]]


class Elections:
    """Stands in for a monitor of a set in which another member becomes primary when the test says so."""

    def __init__(self) -> None:
        self.is_replaced = trio.Event()

    async def wait_replaced(self, _: str) -> None:
        await self.is_replaced.wait()
        self.is_replaced = trio.Event()


class OneMember(ReplicaSetClient):
    """A client without sockets, whose member gives the replies defined by a test."""

    def __init__(self, *answers: Answer) -> None:
        self._answers = list(answers)
        self.monitor: Any = Elections()
        self.failures = 0
        self.asked_ahead = 0
        self.given_up = 0

    async def select(self, *_: object) -> str:
        await trio.lowlevel.checkpoint()
        return MEMBER

    async def exchange_with(self, _: str, frame: bytes) -> bytes:
        await trio.lowlevel.checkpoint()
        if "killCursors" in decode_reply(frame):
            return op_msg_frame({"ok": 1})
        answer = self._answers.pop(0)
        if answer is frozen:
            self.monitor.is_replaced.set()
            await trio.sleep_forever()
        return op_msg_frame(answer())

    async def ask(self, address: str, frame: bytes) -> Any:  # noqa: ANN401 - what stands in for an answer
        await trio.lowlevel.checkpoint()
        self.asked_ahead += 1

        async def receive_answer(_: None) -> bytes:
            return await self.exchange_with(address, frame)

        return SimpleNamespace(receive_answer=receive_answer, give_up=self._give_up)

    def on_failure(self, *_: object) -> None:
        self.failures += 1

    def _give_up(self) -> None:
        self.given_up += 1


def lost() -> dict[str, Any]:
    raise BackendError(MEMBER, "closed the connection", sent=True)


def stepped_down() -> dict[str, Any]:
    return {"ok": 0, "code": 10107, "codeName": "NotWritablePrimary", "errmsg": "not primary"}


def frozen() -> dict[str, Any]:
    raise AssertionError("a frozen member does not answer")


def batch(name: str, cursor: int, *documents: dict[str, Any]) -> Answer:
    return lambda: {"ok": 1, "cursor": {name: list(documents), "id": bson.Int64(cursor), "ns": "config.chunks"}}


def read(member: OneMember) -> list[dict[str, Any]]:
    """The documents that a find returns."""

    async def find() -> list[bytes]:
        return await member.find_raw("config", {"find": "chunks"})

    return [bson.decode(document) for document in trio.run(find)]


# `exchange_with`, which this member replaces, reports that a connection was lost before a batch that is waited for.
@pytest.mark.parametrize(("failure", "reported"), [(lost, 1), (stepped_down, 2), (frozen, 0)])
def test_reading_starts_again_after_a_failure(failure: Answer, reported: int) -> None:
    first = batch("firstBatch", 5, {"_id": 1})
    member = OneMember(failure, first, failure, first, batch("nextBatch", 0, {"_id": 2}))
    assert read(member) == [{"_id": 1}, {"_id": 2}]
    assert member.failures == reported


def test_the_next_batch_is_requested_before_documents_are_dealt_with() -> None:
    first, last = batch("firstBatch", 5, {"_id": 1}), batch("nextBatch", 0, {"_id": 2})
    member = OneMember(first, last)
    requested: list[int] = []

    class Sink(list[bytes]):
        def extend(self, documents: Iterable[bytes], /) -> None:
            super().extend(documents)
            requested.append(member.asked_ahead)

    trio.run(member.read_into, Sink, "config", {"find": "chunks"})
    assert requested == [1, 1]


def test_a_sink_that_fails_abandons_the_batch_that_was_requested() -> None:
    member = OneMember(batch("firstBatch", 5, {"_id": 1}))

    class FailingSink:
        def extend(self, _: Iterable[bytes], /) -> None:
            raise CommandError(ErrorCode.TypeMismatch, "not a chunk")

    with pytest.raises(CommandError, match="not a chunk"):
        trio.run(member.read_into, FailingSink, "config", {"find": "chunks"})
    assert (member.asked_ahead, member.given_up) == (1, 1)


def test_reading_eventually_gives_up() -> None:
    with pytest.raises(BackendError):
        read(OneMember(*[lost] * 10))
    with pytest.raises(CommandError):
        read(OneMember(*[stepped_down] * 10))
    with pytest.raises(BackendError, match="did not answer as long as it was primary"):
        read(OneMember(*[frozen] * 10))


def test_other_errors_are_final() -> None:
    def refused() -> dict[str, Any]:
        return {"ok": 0, "code": 13, "codeName": "Unauthorized", "errmsg": "not authorized"}

    with pytest.raises(CommandError):
        read(OneMember(refused, batch("firstBatch", 0)))


def test_a_frozen_member_keeps_no_command_that_may_be_repeated() -> None:
    async def run(member: OneMember, *, is_idempotent: bool) -> dict[str, Any]:
        with trio.fail_after(1):
            return await member.command("admin", {"ping": 1}, is_idempotent=is_idempotent)

    def answer() -> dict[str, Any]:
        return {"ok": 1, "n": 1}

    assert trio.run(partial(run, OneMember(frozen, answer), is_idempotent=True))["n"] == 1
    with pytest.raises(trio.TooSlowError):
        trio.run(partial(run, OneMember(frozen, answer), is_idempotent=False))


class ThreeMembers(ReplicaSetClient):
    """A client without sockets of a set whose members answer, refuse or are frozen, as a test says.

    Attributes:
        asked: the members that were asked, in order.
        modes: the read preference in each request.
    """

    def __init__(self, **answers: Answer) -> None:
        self._answers = answers
        self.monitor: Any = SimpleNamespace(
            next_change=trio.Event(), readable=lambda: list(answers), select=lambda _: next(iter(answers))
        )
        self.asked: list[str] = []
        self.modes: list[str] = []

    async def exchange_with(self, address: str, frame: bytes) -> bytes:
        self.asked.append(address)
        self.modes.append(decode_reply(frame)["$readPreference"]["mode"])
        await trio.lowlevel.checkpoint()
        if self._answers[address] is frozen:
            await trio.sleep_forever()
        return op_msg_frame(self._answers[address]())


def ask_any(members: ThreeMembers) -> tuple[dict[str, Any], float]:
    """The answer to a question that any member may answer, and after how many seconds it came."""

    async def ask() -> tuple[dict[str, Any], float]:
        began = trio.current_time()
        reply = await members.command("admin", {"usersInfo": 1}, preference=PRIMARY_PREFERRED)
        return reply, trio.current_time() - began

    return trio.run(ask, clock=trio.testing.MockClock(autojump_threshold=0))


def answer() -> dict[str, Any]:
    return {"ok": 1, "n": 1}


def too_late() -> dict[str, Any]:
    return {"ok": 0, "code": 50, "codeName": "MaxTimeMSExpired", "errmsg": "operation exceeded time limit"}


def refused() -> dict[str, Any]:
    return {"ok": 0, "code": 13, "codeName": "Unauthorized", "errmsg": "not authorized"}


def test_the_preferred_member_alone_is_asked_if_it_answers() -> None:
    members = ThreeMembers(a=answer, b=answer)
    assert ask_any(members) == (answer(), 0.0)
    assert (members.asked, members.modes) == (["a"], ["primaryPreferred"])


def test_the_others_are_asked_while_the_preferred_member_is_frozen() -> None:
    members = ThreeMembers(a=frozen, b=frozen, c=answer)
    reply, seconds = ask_any(members)
    assert reply == answer()
    assert 0.0 < seconds <= 0.5
    assert sorted(members.asked) == ["a", "b", "c"]


@pytest.mark.parametrize("failure", [lost, too_late])
def test_the_others_are_asked_at_once_if_the_preferred_member_fails(failure: Answer) -> None:
    assert ask_any(ThreeMembers(a=failure, b=answer)) == (answer(), 0.0)


def test_a_refusal_is_final() -> None:
    members = ThreeMembers(a=refused, b=answer)
    with pytest.raises(CommandError, match="not authorized"):
        ask_any(members)
    assert members.asked == ["a"]


def test_all_have_to_fail() -> None:
    with pytest.raises(BackendError):
        ask_any(ThreeMembers(a=lost, b=lost))
    with pytest.raises(CommandError, match="time limit"):
        ask_any(ThreeMembers(a=lost, b=too_late))


async def test_members_that_are_frozen_until_they_are_gone(autojump_clock: trio.testing.MockClock) -> None:
    members = ThreeMembers(a=frozen, b=frozen)

    async with trio.open_nursery() as nursery:

        async def lose_all() -> None:
            for _ in range(4):
                await trio.sleep(20)
                members.monitor.readable = list
                members.monitor.next_change.set()
                members.monitor.next_change = trio.Event()

        nursery.start_soon(lose_all)
        with pytest.raises(BackendError, match="did not answer as long as it was a member"):
            await members.command("admin", {"usersInfo": 1}, preference=PRIMARY_PREFERRED)
