"""A moveChunk or moveRange that runs concurrently with the test."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import bson

from tests.integration.raw_client import RawClient

Document = dict[str, Any]

MOVE_SECONDS_MAX: Final = 90.0

_REPLY_AT: Final = 21


class RunningMove:
    """A command that was sent to a router and may take a while.

    Attributes:
        reply: the reply; None before it arrives, or if the connection was lost.
    """

    def __init__(self, address: str, command: Document) -> None:
        self.reply: Document | None = None
        self._connection = RawClient(address)
        self._connection.socket.settimeout(MOVE_SECONDS_MAX)
        self._command = command
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def is_over(self) -> bool:
        """Whether the reply has arrived, or can no longer arrive."""
        return not self._thread.is_alive()

    def wait(self, *, within: float = MOVE_SECONDS_MAX) -> Document | None:
        """Wait for the reply, None if the connection was lost.

        Raises:
            AssertionError: it did not arrive in time.
        """
        self._thread.join(within)
        assert self.is_over, f"{self._command} has no answer after {within} s"
        return self.reply

    def close(self) -> None:
        """Close the connection."""
        self._connection.socket.close()

    def _run(self) -> None:
        try:
            self._connection.send_command(self._command)
            frame = self._connection.receive()
        except OSError:
            return
        if frame:
            self.reply = bson.decode(frame[_REPLY_AT:])


@contextmanager
def moving(address: str, command: Document) -> Iterator[RunningMove]:
    """Send a command to a router; it may outlive the block if the test has failed."""
    move = RunningMove(address, command)
    try:
        yield move
    finally:
        move.close()
