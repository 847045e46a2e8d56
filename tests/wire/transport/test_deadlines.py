"""Operations that take longer than they may are interrupted, and no others."""

import gc
import socket
import weakref
from typing import Any

import bson
import pytest
import trio

from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.message import MORE_TO_COME, op_msg
from shardwright.wire.request import Request
from shardwright.wire.transport.client_connection import ClientConnection, Deadlines
from shardwright.wire.transport.reactor import in_own_task
from shardwright.wire.transport.stream import FrameStream
from tests.transports import new_transport
from tests.wire.transport.serving import Serving, serving

pytestmark = pytest.mark.usefixtures("both_ways_of_waiting")

LONG_SECONDS = 3600.0


class LimitedOperations:
    """Answers requests that wait for each other, each within the seconds that it names.

    ``{wait: NAME}`` waits until ``{wake: NAME}`` arrives. ``{late: SIZE}`` is interrupted, but ends without noticing
    it, with a reply of this size.
    """

    def __init__(self) -> None:
        self.deadlines = Deadlines()
        self._events: dict[str, trio.Event] = {}

    async def answer(self, client: ClientConnection, request: Request) -> dict[str, Any]:
        self.deadlines.set(client, request.document.get("seconds", LONG_SECONDS))
        try:
            if request.name == "wake":
                self._event(request.document["wake"]).set()
            elif request.name == "late":
                await in_own_task()
                with trio.CancelScope(shield=True):
                    await trio.sleep(0.1)
                assert client.interruption is not None
                return {"ok": 1.0, "late": bytes(request.document["late"])}
            else:
                await self._event(request.document["wait"]).wait()
            return {"ok": 1.0}
        finally:
            self.deadlines.clear(client)

    def _event(self, name: str) -> trio.Event:
        return self._events.setdefault(name, trio.Event())


class Asker:
    """One client."""

    def __init__(self, served: Serving) -> None:
        self._served = served

    async def connect(self) -> "Asker":
        self._client = await self._served.connect()
        return self

    async def send(self, **command: object) -> None:
        await self._client.send(op_msg(bson.encode({**command, "$db": "admin"}), request_id=1))

    async def receive(self) -> dict[str, Any]:
        return await self._client.receive_document()

    async def ask(self, **command: object) -> dict[str, Any]:
        await self.send(**command)
        return await self.receive()


class ReferencedClient(ClientConnection):
    """One whose end can be noticed."""

    __slots__ = ("__weakref__",)


async def with_operations(test: Any) -> None:  # noqa: ANN401 - any function of these arguments
    operations = LimitedOperations()
    async with serving(operations.answer) as served, trio.open_nursery() as nursery:
        nursery.start_soon(operations.deadlines.run)
        await test(served)
        nursery.cancel_scope.cancel()


def test_an_operation_is_interrupted_at_its_deadline_and_its_connection_stays_open() -> None:
    async def test(served: Serving) -> None:
        client = await Asker(served).connect()
        for _ in range(3):
            reply = await client.ask(wait="never", seconds=0.01)
            assert (reply["ok"], reply["code"]) == (0.0, ErrorCode.MaxTimeMSExpired)
            assert reply["errmsg"] == "operation exceeded time limit"
        assert (await client.ask(wake="never"))["ok"] == 1.0

    trio.run(with_operations, test)


def test_deadlines_of_several_clients_are_independent() -> None:
    async def test(served: Serving) -> None:
        patient, hurried = await Asker(served).connect(), await Asker(served).connect()
        await patient.send(wait="signal", seconds=LONG_SECONDS)
        assert (await hurried.ask(wait="never", seconds=0.01))["code"] == ErrorCode.MaxTimeMSExpired
        assert (await hurried.ask(wake="signal"))["ok"] == 1.0
        assert (await patient.receive())["ok"] == 1.0

    trio.run(with_operations, test)


def test_an_operation_that_has_ended_does_not_end_the_next_one() -> None:
    async def test(served: Serving) -> None:
        client, other = await Asker(served).connect(), await Asker(served).connect()
        assert (await client.ask(wake="signal", seconds=0.02))["ok"] == 1.0
        await client.send(wait="later", seconds=LONG_SECONDS)
        # This one's deadline is after the first one's.
        assert (await other.ask(wait="never", seconds=0.03))["code"] == ErrorCode.MaxTimeMSExpired
        assert (await other.ask(wake="later"))["ok"] == 1.0
        assert (await client.receive())["ok"] == 1.0

    trio.run(with_operations, test)


@pytest.mark.parametrize("size", [10, 16_000_000])
def test_a_deadline_after_the_end_of_an_operation_does_not_cut_its_reply_off(size: int) -> None:
    """The larger one does not fit into the socket: its rest is sent while the operation counts as interrupted."""

    async def test(served: Serving) -> None:
        client = await Asker(served).connect()
        for _ in range(3):
            await client.send(late=size, seconds=0.01)
            await trio.sleep(0.1)  # the socket fills up
            assert len((await client.receive())["late"]) == size
        assert (await client.ask(wait="never", seconds=0.01))["code"] == ErrorCode.MaxTimeMSExpired
        assert (await client.ask(wake="never"))["ok"] == 1.0

    trio.run(with_operations, test)


def test_a_deadline_of_a_request_without_a_reply_leaves_the_connection_open() -> None:
    async def test(served: Serving) -> None:
        client = await served.connect()
        command = bson.encode({"wait": "never", "seconds": 0.01, "$db": "admin"})
        await client.send(op_msg(command, request_id=1, flags=MORE_TO_COME))
        await client.send(op_msg(bson.encode({"wake": "never", "$db": "admin"}), request_id=2))
        assert (await client.receive_document())["ok"] == 1.0

    trio.run(with_operations, test)


def test_a_client_that_has_gone_is_forgotten() -> None:
    async def test(served: Serving) -> None:
        client, other = await served.connect(), await Asker(served).connect()
        await client.send(op_msg(bson.encode({"wait": "never", "seconds": 0.01, "$db": "admin"}), request_id=1))
        await client.stream.aclose()
        await served.handler.someone_left.wait()
        assert (await other.ask(wait="never", seconds=0.02))["code"] == ErrorCode.MaxTimeMSExpired

    trio.run(with_operations, test)


async def test_nothing_is_kept_of_clients_that_are_forgotten() -> None:
    deadlines = Deadlines()
    near, far = socket.socketpair()
    with near, far:
        client = ReferencedClient(FrameStream(near), "here", new_transport().unread_replies)
        kept = weakref.ref(client)
        deadlines.set(client, LONG_SECONDS)
        deadlines.clear(client)
        deadlines.forget(client)
        del client
        gc.collect()
        assert kept() is None
