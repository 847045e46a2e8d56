"""The base class of all workloads."""

from abc import ABC, abstractmethod
from collections import Counter
from typing import ClassVar

from tests.chaos.stage import Stage, StageClient


class Workload(ABC):
    """Operations of clients on one database, and the checks of their results.

    Attributes:
        name: its name for ``--workloads``.
        clients: the number of concurrent clients.
        reads: how often clients have read and checked everything, by the kind of read, where that is counted.
    """

    name: ClassVar[str]
    clients: ClassVar[int] = 3

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.reads: Counter[str] = Counter()

    @abstractmethod
    def set_up(self) -> None:
        """Create the clients' collections. There are no faults yet."""

    @abstractmethod
    def step(self, client: StageClient) -> None:
        """Run one step of a client.

        Raises:
            AssertionError: a reply is impossible, whatever else happens.
        """

    @abstractmethod
    def check(self) -> list[str]:
        """The anomalies, once faults, moves and clients have ended."""
