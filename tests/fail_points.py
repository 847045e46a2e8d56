"""Fail points of shard daemons, turned on for the length of a block."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from pymongo.errors import OperationFailure, PyMongoError

from tests.local_cluster import Client

ENTER_SECONDS_MAX: Final = 60.0


class FailPoint:
    """A fail point of one daemon that is on.

    Args:
        daemon: a client of exactly the daemon.
        entered: number of times it had been entered when it was turned on.
    """

    def __init__(self, daemon: Client, name: str, entered: int) -> None:
        self._daemon = daemon
        self.name = name
        self._entered = entered

    def wait_entered(self, times: int = 1, *, within: float = ENTER_SECONDS_MAX) -> None:
        """Wait until the daemon has entered the fail point this many times.

        Raises:
            AssertionError: it has not in time.
        """
        wait: dict[str, Any] = {"timesEntered": self._entered + times, "maxTimeMS": int(within * 1000)}
        try:
            self._daemon.admin.command("waitForFailPoint", self.name, **wait)
        except OperationFailure as error:
            raise AssertionError(f"{self.name} was not reached within {within} s: {error}") from error

    def turn_off(self) -> int:
        """Turn the fail point off, so that the daemon continues; a killed daemon has lost its fail points anyway.

        Returns:
            The number of times it has been entered since it was turned on, by a daemon that was not killed.
        """
        reply = self._daemon.admin.command("configureFailPoint", self.name, mode="off")
        return int(reply["count"]) - self._entered


@contextmanager
def fail_point(
    daemon: Client,
    name: str,
    mode: str | dict[str, Any] = "alwaysOn",
    **data: Any,  # noqa: ANN401 - whatever the fail point understands
) -> Iterator[FailPoint]:
    """Turn a fail point on; after the block it is off, whatever the block has done to the daemon."""
    reply = daemon.admin.command("configureFailPoint", name, mode=mode, data=data)
    point = FailPoint(daemon, name, reply["count"])
    try:
        yield point
    except BaseException:
        try:
            point.turn_off()
        except PyMongoError as error:
            print(f"{name} could not be turned off: {error}")
        raise
    point.turn_off()
