"""The state that all connections of a process share.

A process creates one `Transport` at its start and passes it to everything that opens or accepts connections. Two
transports share nothing, so tests can run several daemons in one process. The reactor is not part of it
(`wire.transport.reactor` explains why).
"""

from dataclasses import dataclass
from pathlib import Path

from shardwright.wire.tls import ProcessTls
from shardwright.wire.transport.cluster_auth import ClusterAuth
from shardwright.wire.transport.reply_memory import UnreadReplies


@dataclass(frozen=True, slots=True)
class LocalSockets:
    """The UNIX sockets of the daemons on this machine.

    Attributes:
        directory: the directory in which each daemon's socket is named after its address; None if there is none.
    """

    directory: Path | None = None

    def path_of(self, address: str) -> str | None:
        """Return the socket of the daemon at ``host:port``; None if it has none on this machine."""
        if self.directory is None:
            return None
        path = socket_path(self.directory, address)
        return str(path) if path.exists() else None


def socket_path(directory: Path, address: str) -> Path:
    """Return the path of the socket of the daemon at ``host:port``."""
    return directory / f"{address}.sock"


@dataclass(slots=True)
class Timeouts:
    """Timeouts in seconds, which the options of a process set at its start, and again at SIGHUP.

    With mongod's ``electionTimeoutMillis`` of 10 s, a frozen member is lost by the time that another one is elected.
    mongos waits 15 s for a member (``defaultFindReplicaSetHostTimeoutMS``).

    Attributes:
        hello_seconds: a member of a replica set, or a daemon's own mongod, that has not answered a hello for this long
            is not selected any more. A frozen process is noticed after this time at the latest.
        selection_seconds: time limit of an operation for a suitable member, for example during an election.
        recheck_seconds: time limit for connecting to a doubtful member and for its answer to another hello. A member is
            doubtful if it was silent for `hello_seconds`, or another member has become primary in its place. Beyond the
            limit it counts as lost, and the requests that wait for it fail.
    """

    hello_seconds: float = 10.0
    selection_seconds: float = 20.0
    recheck_seconds: float = 2.0

    @property
    def await_ms(self) -> int:
        """Wait of an awaitable hello for a change: half of `hello_seconds`, the rest is for the reply."""
        return int(self.hello_seconds * 500)


@dataclass(frozen=True, slots=True)
class Transport:
    """The shared state of a process's connections.

    Attributes:
        tls: the certificates of the process, and its requirements for peers.
        cluster_auth: how the processes of the cluster recognise each other.
        unread_replies: the memory for replies that clients have not read, and its limits.
        timeouts: for hosts that do not answer.
        local_sockets: where daemons on this machine listen besides their TCP ports.
    """

    tls: ProcessTls
    cluster_auth: ClusterAuth
    unread_replies: UnreadReplies
    timeouts: Timeouts
    local_sockets: LocalSockets
