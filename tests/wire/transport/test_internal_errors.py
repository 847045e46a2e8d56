"""Unexpected exceptions outside of the handler end their own connection; they are logged and counted."""

import errno
import logging
import socket
from collections.abc import Callable
from typing import Any

import bson
import pytest
import trio

from shardwright.daemon.metrics import Metrics, measure_connections
from shardwright.wire.logger import INTERNAL_ERRORS
from shardwright.wire.message import op_msg
from shardwright.wire.transport.client_connection import ClientConnection
from shardwright.wire.transport.disconnects import DisconnectWatcher
from shardwright.wire.transport.pool import ConnectionPools
from shardwright.wire.transport.reactor import REACTOR
from shardwright.wire.transport.stream import FrameStream
from tests.transports import new_transport
from tests.wire.transport.serving import RawClient, RecordingHandler, Serving, answer_ok, serving

pytestmark = pytest.mark.usefixtures("both_ways_of_waiting")

BAD_PING = op_msg(bson.encode({"ping": "faulty", "$db": "admin"}), request_id=1)
PING = op_msg(bson.encode({"ping": 1, "$db": "admin"}), request_id=1)


class FaultError(Exception):
    """An unexpected error."""


def fail(*_: object, **__: object) -> Any:  # noqa: ANN401 - never returns
    raise FaultError("injected")


async def assert_serves(client: RawClient) -> None:
    await client.send(PING)
    assert (await client.receive_document())["asked"] == "ping"


def fail_while_answering(served: Serving, patch: pytest.MonkeyPatch) -> None:
    """Answer the next request, but fail to send its reply."""

    async def to_frame(client: ClientConnection, frame: bytes) -> bytes | None:
        if b"faulty" not in frame:
            return await ordinary(client, frame)
        client.stream.post = client.stream.send_now = fail  # type: ignore[method-assign]
        return await ordinary(client, frame)

    class Stream(FrameStream):
        """With a dictionary, so that an object's methods can be replaced."""

    patch.setattr("shardwright.wire.transport.server.FrameStream", Stream)
    ordinary = served.server.answers.to_frame
    patch.setattr(served.server.answers, "to_frame", to_frame)


def fail_before_the_handler(served: Serving, patch: pytest.MonkeyPatch) -> None:
    async def to_frame(client: ClientConnection, frame: bytes) -> bytes | None:
        return fail() if b"faulty" in frame else await ordinary(client, frame)

    ordinary = served.server.answers.to_frame
    patch.setattr(served.server.answers, "to_frame", to_frame)


def fail_in_the_task(served: Serving, patch: pytest.MonkeyPatch) -> None:
    """As after `in_own_task`."""

    async def to_frame(client: ClientConnection, frame: bytes) -> bytes | None:
        reply = await ordinary(client, frame)  # the handler leaves the reactor
        await trio.lowlevel.checkpoint()
        return fail() if b"faulty" in frame else reply

    ordinary = served.server.answers.to_frame
    patch.setattr(served.server.answers, "to_frame", to_frame)


@pytest.mark.parametrize("inject", [fail_before_the_handler, fail_in_the_task, fail_while_answering])
def test_a_fault_in_the_loop_of_a_connection_ends_this_connection_only(
    inject: Callable[[Serving, pytest.MonkeyPatch], None],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        async with serving(answer_ok) as served:
            inject(served, monkeypatch)
            before = INTERNAL_ERRORS.total
            good, bad = await served.connect(), await served.connect()
            await assert_serves(good)
            await bad.send(BAD_PING)
            assert await bad.receive() is None
            await assert_serves(good)
            await assert_serves(await served.connect())
            assert INTERNAL_ERRORS.total == before + 1
            assert len(served.handler.closed) == 1
            assert len(served.server.clients) == 2

    with caplog.at_level(logging.ERROR):
        trio.run(main)
    [record] = [each for each in caplog.records if each.getMessage() == "Internal error on a connection"]
    assert record.exc_info is not None
    assert record.exc_info[0] is FaultError
    assert "remote" in vars(record)["fields"]


@pytest.mark.parametrize("method", ["connection_opened", "connection_closed"])
async def test_a_fault_when_a_client_comes_or_goes_affects_no_other(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(answer_ok) as served:
        good = await served.connect()
        await assert_serves(good)
        before = INTERNAL_ERRORS.total
        with monkeypatch.context() as patch:
            patch.setattr(RecordingHandler, method, fail)
            bad = await served.connect()
            if method == "connection_closed":
                await assert_serves(bad)
                await bad.stream.send_eof()
            assert await bad.receive() is None
            while len(served.server.clients) > 1 or INTERNAL_ERRORS.total == before:
                await trio.lowlevel.checkpoint()
        await assert_serves(good)
        assert INTERNAL_ERRORS.total == before + 1


async def test_a_fault_of_a_callback_stops_neither_the_reactor_nor_the_watcher() -> None:
    async with serving(answer_ok) as served, trio.open_nursery() as nursery:
        good = await served.connect()
        before = INTERNAL_ERRORS.total
        watcher = DisconnectWatcher()
        nursery.start_soon(watcher.run)
        ours, theirs = socket.socketpair()
        mine, other = socket.socketpair()
        with ours, mine, other:
            watcher.watch(ours, fail)
            theirs.close()
            expected = 1
            if REACTOR.is_running:
                REACTOR.watch(mine, fail)
                REACTOR.afterwards.append(fail)
                other.send(b"x")
                expected = 3
            while INTERNAL_ERRORS.total < before + expected:
                await trio.lowlevel.checkpoint()
            if REACTOR.is_running:
                REACTOR.unwatch(mine)
        await assert_serves(good)
        nursery.cancel_scope.cancel()


def test_a_connection_that_breaks_before_it_is_accepted_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with serving(answer_ok) as served:
            await assert_serves(await served.connect())

    ordinary = socket.socket.accept
    failures = [OSError(errno.ECONNABORTED, "gone"), OSError(errno.EPROTO, "gone")]

    def accept(listener: socket.socket) -> tuple[socket.socket, Any]:
        if failures:
            raise failures.pop()
        return ordinary(listener)

    monkeypatch.setattr(socket.socket, "accept", accept)
    trio.run(main)
    assert not failures


async def test_the_counter_exists_from_the_start() -> None:
    async with serving(answer_ok) as served:
        metrics = Metrics("toy", ())
        measure_connections(
            metrics, served.server, ConnectionPools(new_transport(), lambda: {"hello": 1, "$db": "admin"})
        )
        assert f"shardwright_toy_internal_errors_total {float(INTERNAL_ERRORS.total)}" in metrics.render().decode()
