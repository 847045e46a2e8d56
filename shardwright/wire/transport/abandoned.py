"""Requests whose replies nobody waits for any longer. They end, and so do the cursors that they have opened.

The connection is only half-closed. A mongod then ends the operation as if its client had disconnected, but it still
sends the reply. So a cursor that was opened in that instant is known, and killed, rather than left to time out after
ten minutes.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import trio
from bson.int64 import Int64

from shardwright.wire.cursor_batch import RawBatch
from shardwright.wire.errors import BackendError, CommandError, RemoteProtocolError
from shardwright.wire.logger import get_logger
from shardwright.wire.rawbson import InvalidBSONError
from shardwright.wire.transport.stream import FrameStream

logger = get_logger("wire.abandoned")

_REPLY_SECONDS_MAX: Final = 60.0
"""How long the reply is awaited: operations that a mongod does not end for lack of a client may take any time."""

_KILL_SECONDS_MAX: Final = 60.0

RunCommand = Callable[[str, Mapping[str, Any]], Awaitable[object]]
"""Runs a command on a database of the host."""


class AbandonedRequests:
    """Receives the replies to abandoned requests. While `run` is not running, their connections are closed at once."""

    def __init__(self) -> None:
        self._to_end, self._ending = trio.open_memory_channel[tuple[FrameStream, RunCommand]](float("inf"))
        self._is_running = False

    async def run(self) -> None:
        """Receive replies until cancelled."""
        self._is_running = True
        try:
            async with trio.open_nursery() as nursery:
                async for stream, run_command in self._ending:
                    nursery.start_soon(_end, stream, run_command)
        finally:
            self._is_running = False
            while self._ending.statistics().current_buffer_used:
                self._ending.receive_nowait()[0].close()

    def end(self, stream: FrameStream, run_command: RunCommand) -> None:
        """End a request.

        Args:
            stream: the connection on which it was sent, and no part of its reply was taken; it is closed in the end.
            run_command: runs a command on another connection to the same host.
        """
        if self._is_running and stream.half_close():
            self._to_end.send_nowait((stream, run_command))
        else:
            stream.close()


async def _end(stream: FrameStream, run_command: RunCommand) -> None:
    """Receive the reply, and kill the cursor that it names; one that cannot be killed now times out there."""
    try:
        reply = None
        with trio.move_on_after(_REPLY_SECONDS_MAX):
            reply = await stream.receive()
        if reply is not None:
            await _kill_cursor_of(reply, run_command)
    except (OSError, RemoteProtocolError, InvalidBSONError) as error:
        logger.debug("Could not read the reply to an abandoned request", error=str(error))
    finally:
        stream.close()


async def _kill_cursor_of(reply: bytes, run_command: RunCommand) -> None:
    try:
        batch = RawBatch(reply)
    except CommandError:
        return  # it opened none
    if not batch.cursor_id:
        return
    db, _, collection = batch.namespace.partition(".")
    try:
        with trio.fail_after(_KILL_SECONDS_MAX):
            await run_command(db, {"killCursors": collection, "cursors": [Int64(batch.cursor_id)]})
    except (BackendError, CommandError, trio.TooSlowError) as error:
        reason = str(error) or "timeout"
        logger.info("Could not kill a cursor", namespace=batch.namespace, error=reason)
