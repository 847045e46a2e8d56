"""How long the daemons of a process wait for other hosts, for those bounds that an operator may choose."""

from typing import Final


class Timeouts:
    """The bounds in seconds; changed at the start of a process, if at all.

    Attributes:
        hello_seconds: a member of a replica set, or a daemon's own mongod, that has not answered a hello for so long
            is taken for gone. A frozen process is noticed after this at the latest.
        selection_seconds: how long an operation waits for a member that may serve it, as during an election.
    """

    def __init__(self) -> None:
        self.hello_seconds = 20.0
        self.selection_seconds = 20.0

    @property
    def await_ms(self) -> int:
        """How long a hello is asked to wait for news: half of the time, so that the other half is for the answer."""
        return int(self.hello_seconds * 500)


TIMEOUTS: Final = Timeouts()
"""Those of this process. mongos waits 15 s for a member (``defaultFindReplicaSetHostTimeoutMS``)."""
