"""Timeouts for other hosts: those that an operator may configure, and the kernel's."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import trio

from shardwright.wire.errors import BackendError

_OVERSLEPT_SECONDS: Final = 1.0
"""Delay beyond which a timeout proves nothing: this process was paused, and the answer may be waiting."""


class Timeouts:
    """Timeouts in seconds, which the options of a process set at its start, and again at SIGHUP.

    Attributes:
        hello_seconds: a member of a replica set, or a daemon's own mongod, that has not answered a hello for this long
            is not selected any more. A frozen process is noticed after this time at the latest.
        recheck_seconds: time limit for connecting to a doubtful member and for its answer to another hello. A member is
            doubtful if it was silent for `hello_seconds`, or another member has become primary in its place. Beyond the
            limit it counts as lost, and the requests that wait for it fail.
        selection_seconds: time limit of an operation for a suitable member, for example during an election.
    """

    def __init__(self) -> None:
        self.hello_seconds = 10.0
        self.recheck_seconds = 2.0
        self.selection_seconds = 20.0

    @property
    def await_ms(self) -> int:
        """Wait of an awaitable hello for a change: half of `hello_seconds`, the rest is for the reply."""
        return int(self.hello_seconds * 500)


TIMEOUTS: Final = Timeouts()
"""The timeouts of this process.

With mongod's ``electionTimeoutMillis`` of 10 s, a frozen member is lost by the time that another one is elected. mongos
waits 15 s for a member (``defaultFindReplicaSetHostTimeoutMS``).
"""


class HelloTimeoutError(BackendError):
    """A host that did not answer a hello in time; it counts as silent only if this process was not paused."""


@contextmanager
def hello_within(address: str, seconds: float) -> Iterator[None]:
    """Limit the time for a hello in the block; raise HelloTimeoutError beyond it."""
    with trio.move_on_after(seconds) as scope:
        yield
    if scope.cancelled_caught:
        is_silent = trio.current_time() - scope.deadline < _OVERSLEPT_SECONDS
        raise HelloTimeoutError(address, "did not answer a hello in time", sent=True, is_silent=is_silent)


@dataclass(frozen=True)
class TcpLimits:
    """The kernel's timeouts for a silent peer, in seconds, see tcp(7).

    Attributes:
        idle: a connection without traffic for this long is probed.
        interval: the time between two probes.
        unanswered: the connection breaks if the peer has acknowledged neither a probe nor data for this long, or has
            had no room for more data.
    """

    idle: int
    interval: int
    unanswered: int

    def apply(self, connected: socket.socket) -> None:
        """Set the timeouts on a TCP socket."""
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, self.idle)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, self.interval)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, -(-self.unanswered // self.interval))
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, self.unanswered * 1000)


SERVER_LIMITS: Final = TcpLimits(idle=10, interval=5, unanswered=20)
"""Timeouts for connections to servers, which always read."""

CLIENT_LIMITS: Final = TcpLimits(idle=30, interval=10, unanswered=120)
"""Timeouts for connections from clients, whose application may be busy and not read its replies for some time."""
