"""What all workloads have in common."""

from abc import ABC, abstractmethod
from typing import ClassVar

from tests.chaos.stage import Stage, StageClient


class Workload(ABC):
    """Operations that clients do on one database, and what must be true of their answers.

    Attributes:
        name: as ``--workloads`` takes it.
        clients: how many work at the same time.
    """

    name: ClassVar[str]
    clients: ClassVar[int] = 3

    def __init__(self, stage: Stage) -> None:
        self.stage = stage

    @abstractmethod
    def set_up(self) -> None:
        """Create what the clients work on. There are no faults yet."""

    @abstractmethod
    def step(self, client: StageClient) -> None:
        """Do something.

        Raises:
            AssertionError: an answer that cannot be, whatever else happens.
        """

    @abstractmethod
    def check(self) -> list[str]:
        """What is wrong about all that happened. Faults, moves and clients have ended."""
