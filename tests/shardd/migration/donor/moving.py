"""Moving ranges between the shards of a small cluster."""

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from bson import MaxKey
from pymongo.errors import ConnectionFailure, PyMongoError

from tests.fail_points import fail_point
from tests.integration.waiting import eventually
from tests.shardd.mini_cluster import Client, MiniCluster
from tests.shardd.router_stand_in import ShardedNamespace

Document = dict[str, Any]

MOVE_SECONDS_MAX: Final = 90.0
LOW: Final[Document] = {"a": 10}
TOP: Final[Document] = {"a": MaxKey()}
"""Bounds of the range that these tests move: the last chunk of a collection, which is on ``sh0``."""


def daemon(cluster: MiniCluster, shard: str = "sh0") -> Client:
    """A client of the daemon of a shard."""
    return cluster.kept_client(cluster.shards[shard].members[0])


class Move:
    """A move that runs concurrently with the test.

    Attributes:
        error: why it failed; None if it did not.
    """

    def __init__(self, sharded: ShardedNamespace, low: Mapping[str, Any], high: Mapping[str, Any], to: str) -> None:
        self.error: PyMongoError | None = None
        self._arguments = (sharded, low, high, to)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def is_over(self) -> bool:
        """Whether it has ended."""
        return not self._thread.is_alive()

    def wait(self) -> None:
        """Wait for its success.

        Raises:
            PyMongoError: it failed.
        """
        self._thread.join(MOVE_SECONDS_MAX)
        assert self.is_over, "a move does not end"
        if self.error is not None:
            raise self.error

    def _run(self) -> None:
        sharded, low, high, to = self._arguments
        command = {"_configsvrMoveRange": sharded.namespace, "toShard": to, "min": low, "max": high}
        try:
            with sharded.cluster.config_client() as config:
                config.admin.command({**command, "writeConcern": {"w": "majority"}})
        except PyMongoError as error:
            self.error = error


@contextmanager
def stopped_move(
    sharded: ShardedNamespace, place: str, *, shard: str = "sh0", high: Mapping[str, Any] = TOP
) -> Iterator[Move]:
    """A move from `LOW` on to ``sh1`` that waits at a fail point of a shard until the block ends."""
    with fail_point(daemon(sharded.cluster, shard), place) as point:
        move = Move(sharded, LOW, high, "sh1")
        point.wait_entered()
        yield move


def migrations_left(cluster: MiniCluster, shard: str = "sh0") -> list[Document]:
    """The coordinators that a shard has persisted."""
    return list(daemon(cluster, shard).config.migrationCoordinators.find())


def wait_finished(cluster: MiniCluster) -> None:
    """Wait until no migration is left on the donor, which may just have been started."""

    def is_finished() -> bool:
        try:
            return not migrations_left(cluster)
        except ConnectionFailure as error:
            print(f"not there yet: {error}")
            return False

    eventually(is_finished, what="no migration is left")


def end(move: Move) -> None:
    """Wait for the end of a move whose donor was killed, however it ended."""
    try:
        move.wait()
    except PyMongoError as failure:
        print(f"the move failed: {failure}")


def log_lines(cluster: MiniCluster, shard: str, sentence: str, namespace: str) -> list[Document]:
    """The log lines of a shard's daemon with one message about a collection."""
    lines = cluster.shards[shard].members[0].daemon.log.read_text().splitlines()
    found = [json.loads(line) for line in lines if sentence in line]
    return [line for line in found if (line["msg"], line.get("namespace")) == (sentence, namespace)]


def changes(sharded: ShardedNamespace, what: str) -> list[Document]:
    """The details of the changelog's entries of one kind about a collection."""
    with sharded.cluster.config_client() as config:
        found = config.config.changelog.find({"ns": sharded.namespace, "what": what}).sort("time", 1)
        return [entry["details"] for entry in found]
