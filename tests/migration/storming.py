"""Clients that send every retryable write several times, also at the same time, and through all routers."""

import random
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from tests.migration.retrying import HEAL_SECONDS_MAX, Document, RetryingClient, Write

TIMES_MIN: Final = 2
TIMES_MAX: Final = 5
TOGETHER_MAX: Final = 3
"""Maximum number of writes in progress at once."""


class StormingClient:
    """One client, used by one thread.

    Args:
        addresses: of the routers.
        choice: chooses the number and order of the attempts of each write.

    Attributes:
        sent: number of answered commands.
    """

    def __init__(self, addresses: Sequence[str], choice: random.Random) -> None:
        self._clients = [RetryingClient(addresses) for _ in range(TOGETHER_MAX)]
        self._threads = ThreadPoolExecutor(TOGETHER_MAX)
        self._random = choice
        self.sent = 0

    def close(self) -> None:
        """Close all connections."""
        self._threads.shutdown()
        for client in self._clients:
            client.close()

    def run(self, write: Write, *, within: float = HEAL_SECONDS_MAX) -> Document:
        """Send a write two to five times; returns its answer.

        Raises:
            WriteRefusedError: it failed with an error that must not be retried, or for too long.
            AssertionError: the answers differ.
        """
        times = self._random.randint(TIMES_MIN, TIMES_MAX)
        together = self._random.randint(1, min(times, TOGETHER_MAX))
        first = self._random.randrange(2)
        routers = range(first, first + times)  # in turn, so each write goes through both
        running = [
            self._threads.submit(client.run, write, router=router, within=within)
            for client, router in zip(self._clients, routers[:together], strict=False)
        ]
        answers = [each.result() for each in running]
        for router in routers[together:]:
            answers.append(self._clients[0].run(write, router=router, within=within))
        self.sent += times
        assert all(each == answers[0] for each in answers), f"{write.body} was answered differently: {answers}"
        return answers[0]
