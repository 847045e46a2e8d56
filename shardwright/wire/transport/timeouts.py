"""How long a process waits for other hosts, for the limits that an operator may configure."""

from typing import Final


class Timeouts:
    """The limits in seconds; changed only at startup, if at all.

    Attributes:
        hello_seconds: a member of a replica set, or a daemon's own mongod, that has not answered a hello for this long
            is considered gone. A frozen process is noticed after this time at the latest.
        selection_seconds: how long an operation waits for a suitable member, for example during an election.
    """

    def __init__(self) -> None:
        self.hello_seconds = 20.0
        self.selection_seconds = 20.0

    @property
    def await_ms(self) -> int:
        """How long an awaitable hello may wait for a change: half of `hello_seconds`, the rest is for the reply."""
        return int(self.hello_seconds * 500)


TIMEOUTS: Final = Timeouts()
"""The limits of this process. mongos waits 15 s for a member (``defaultFindReplicaSetHostTimeoutMS``)."""
