"""A client that repeats a change until it is answered for good, through one router after the other."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import cycle
from typing import Final

from pymongo.errors import ConnectionFailure, OperationFailure

from tests.ddl.changes import Change
from tests.integration.sharded import Document
from tests.local_cluster import client_of
from tests.migration.fault_cluster import FaultCluster
from tests.migration.retrying import RETRYABLE_CODES

ANSWER_SECONDS_MAX: Final = 120.0


class PersistentClient:
    """One change, requested by a thread.

    Attributes:
        errors: after which the request was repeated.
    """

    def __init__(self, cluster: FaultCluster, change: Change) -> None:
        self.errors: list[Exception] = []
        self._change = change
        self._addresses = cluster.router_addresses
        self._is_given_up = threading.Event()
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        """Send the request."""
        self._thread.start()

    def wait(self) -> None:
        """Wait until the change has been made.

        Raises:
            AssertionError: it takes too long.
            OperationFailure: it was refused.
        """
        self._thread.join(ANSWER_SECONDS_MAX)
        assert not self._thread.is_alive(), f"no answer after {ANSWER_SECONDS_MAX} s, only {self.errors}"
        if self._failure is not None:
            raise self._failure

    def give_up(self) -> None:
        """Repeat the request no more."""
        self._is_given_up.set()

    def _run(self) -> None:
        db, command = self._change.request()
        for address in cycle(self._addresses):
            try:
                self._send(address, db, command)
            except (ConnectionFailure, OperationFailure) as error:
                self.errors.append(error)
                if self._is_final(error):
                    return
            else:
                return
            if self._is_given_up.wait(0.1):
                return

    def _send(self, address: str, db: str, command: Document) -> None:

        with client_of(address, serverSelectionTimeoutMS=1_000) as client:
            client[db].command(command)

    def _is_final(self, error: Exception) -> bool:
        """Whether the change has been made, or has been refused."""
        repeated = RETRYABLE_CODES | self._change.repeated
        if not isinstance(error, OperationFailure) or error.code in repeated:
            return False
        is_told = len(self.errors) > 1 and error.code in self._change.done
        if not (is_told or error.code in self._change.refused):
            self._failure = error
        return True


@contextmanager
def requesting(cluster: FaultCluster, change: Change) -> Iterator[PersistentClient]:
    """Request a change that runs during the block."""
    client = PersistentClient(cluster, change)
    client.start()
    try:
        yield client
    finally:
        client.give_up()
