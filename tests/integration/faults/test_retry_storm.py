"""A retry storm: every write is sent several times through both routers while chunks move, and each counts once."""

import random
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.integration.retryable_writes import (
    deletes,
    deletes_by_id,
    increments,
    increments_by_id,
    inserts,
    modify,
    upserts,
)
from tests.integration.sharded import LOWER, UPPER, Document, Documents
from tests.local_cluster import RunningCluster
from tests.migration.retrying import Session, Write
from tests.migration.storming import StormingClient

CLIENTS = 3
SHARED_KEYS = (100, 101, 102, 600, 601, 602)
"""Of the documents that all clients increment. The first three move."""


class Storm:
    """The writes of one client, and the increments that must result."""

    def __init__(self, cluster: RunningCluster, collection: Documents, number: int) -> None:
        self._random = random.Random(number)
        self._client = StormingClient([cluster.address(f"router.{each}") for each in range(2)], self._random)
        self._database = collection.database.name
        self._sessions = [Session(), Session()]
        self._own = range(110 + 10 * number, 114 + 10 * number)
        self._own_high = range(610 + 10 * number, 614 + 10 * number)
        self.increments: Counter[int] = Counter()
        self.writes = 0

    def run_until(self, is_over: threading.Event) -> None:
        """Write until told to stop, and once at least."""
        try:
            while not is_over.is_set() or not self.writes:
                self._random.choice([self._update, self._update_by_id, self._modify, self._come_and_go])()
                self.writes += 1
        finally:
            self._client.close()

    def _write(self, command: Document) -> Document:
        ordered = {} if "findAndModify" in command else {"ordered": self._random.random() < 0.5}
        return self._client.run(Write.of(self._database, {**command, **ordered}, self._random.choice(self._sessions)))

    def _some(self, keys: Any, most: int = 6) -> list[int]:  # noqa: ANN401 - a sequence
        return self._random.sample(list(keys), self._random.randint(1, most))

    def _count(self, keys: list[int], reply: Document) -> None:
        assert (reply["n"], reply["nModified"]) == (len(keys), len(keys)), (keys, reply)
        self.increments.update(keys)

    def _update(self) -> None:
        keys = self._some(SHARED_KEYS)
        self._count(keys, self._write(increments(*keys)))

    def _update_by_id(self) -> None:
        keys = self._some(SHARED_KEYS, 3)
        self._count(keys, self._write(increments_by_id(*keys)))

    def _modify(self) -> None:
        key = self._random.choice(SHARED_KEYS)
        reply = self._write(modify(key, update={"$inc": {"n": 1}}, new=self._random.random() < 0.5))
        assert reply["value"]["_id"] == key, reply
        self.increments[key] += 1

    def _come_and_go(self) -> None:
        """Documents that only this client knows."""
        keys = [*self._some(self._own, 4), *self._some(self._own_high, 4)]
        come, go = self._random.choice([inserts, upserts]), self._random.choice([deletes, deletes_by_id])
        for command in (come(*keys), go(*keys)):
            reply = self._write(command)
            assert reply["n"] == len(keys), (command, reply)
            assert "writeErrors" not in reply, (command, reply)


def storm(cluster: RunningCluster, collection: Documents, move: Callable[[int], None], moves: int) -> int:
    """Run writing clients during moves, and return the number of writes."""
    collection.insert_many({"_id": key, "key": key, "n": 0} for key in SHARED_KEYS)
    storms = [Storm(cluster, collection, number) for number in range(CLIENTS)]
    is_over = threading.Event()
    with ThreadPoolExecutor(CLIENTS) as pool:
        running = [pool.submit(each.run_until, is_over) for each in storms]
        try:
            for number in range(moves):
                move(number)
        finally:
            is_over.set()
        for each in running:
            each.result()
    expected = sum((each.increments for each in storms), Counter[int]())
    assert {each["_id"]: each["n"] for each in collection.find()} == {key: expected[key] for key in SHARED_KEYS}
    return sum(each.writes for each in storms)


@pytest.mark.parametrize("moves", [4, pytest.param(40, marks=pytest.mark.exhaustive)])
def test_a_storm(cluster: RunningCluster, placed: Documents, moves: int) -> None:
    admin = placed.database.client.admin

    def move(number: int) -> None:
        admin.command("moveChunk", placed.full_name, find={"key": 100}, to=(UPPER, LOWER)[number % 2])

    assert storm(cluster, placed, move, moves) >= CLIENTS
