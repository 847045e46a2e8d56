"""Moves of collections to a shard on which transactions are open all the time, and which coordinates their commits."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from pymongo import WriteConcern
from pymongo.client_session import ClientSession
from pymongo.database import Database

from tests.integration.sharded import LOWER, SPLIT_AT, UPPER, Document, Documents, placement, shard_collection
from tests.integration.waiting import eventually
from tests.local_cluster import Client

WRITERS = 4
MOVES = 3
MOVE_MS_MAX = 60_000


class Commits:
    """Threads that commit transactions on both shards, coordinated by the upper one."""

    def __init__(self, placed: Documents) -> None:
        self._placed = placed.with_options(write_concern=WriteConcern(w="majority"))
        self._is_stopping = threading.Event()
        self._threads = [threading.Thread(target=self._commit_all, args=(number,)) for number in range(WRITERS)]
        self.committed = [0] * WRITERS

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._is_stopping.set()
        for thread in self._threads:
            thread.join()

    def _commit_all(self, number: int) -> None:
        def change_both(session: ClientSession) -> None:
            for key in (SPLIT_AT + number, number):  # the upper shard first, which thereby becomes the coordinator
                self._placed.update_one({"key": key}, {"$inc": {"n": 1}}, session=session)

        with self._placed.database.client.start_session() as session:
            while not self._is_stopping.is_set():
                session.with_transaction(change_both)
                self.committed[number] += 1


@contextmanager
def commits(placed: Documents) -> Iterator[Commits]:
    """Commits that go on until the block ends."""
    placed.insert_many({"key": key, "n": 0} for number in range(WRITERS) for key in (number, SPLIT_AT + number))
    running = Commits(placed)
    running.start()
    try:
        eventually(lambda: min(running.committed) > 0, within=60.0, what="all writers have committed")
        yield running
    finally:
        running.stop()


def test_a_collection_moves_to_a_shard_that_coordinates_commits(
    client: Client, database: Database[Document], placed: Documents
) -> None:
    with commits(placed) as running:
        for number in range(MOVES):
            shard_collection(database, f"moved{number}", {"key": 1})
            moved = database[f"moved{number}"]
            moved.insert_one({"key": 1})
            client.admin.command("moveChunk", moved.full_name, find={"key": 1}, to=UPPER, maxTimeMS=MOVE_MS_MAX)
            assert placement(client, moved.full_name) == [UPPER]
            assert moved.count_documents({}) == 1
    counted = {document["key"]: document["n"] for document in placed.find()}
    assert counted == {
        key: running.committed[number] for number in range(WRITERS) for key in (number, SPLIT_AT + number)
    }
    assert placement(client, placed.full_name) == [LOWER, UPPER]
