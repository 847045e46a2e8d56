"""Moves of collections to a shard on which transactions are open all the time, and which coordinates their commits."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
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


@contextmanager
def commits(placed: Documents) -> Iterator[list[int]]:
    """Transactions on both shards, coordinated by the upper one, until the block ends; how many each writer commits."""
    placed.insert_many({"key": key, "n": 0} for number in range(WRITERS) for key in (number, SPLIT_AT + number))
    written = placed.with_options(write_concern=WriteConcern(w="majority"))
    is_ending, committed = threading.Event(), [0] * WRITERS

    def commit_all(number: int) -> None:
        def change_both(session: ClientSession) -> None:
            for key in (SPLIT_AT + number, number):  # the upper shard first, which thereby becomes the coordinator
                written.update_one({"key": key}, {"$inc": {"n": 1}}, session=session)

        with placed.database.client.start_session() as session:
            while not is_ending.is_set():
                session.with_transaction(change_both)
                committed[number] += 1

    with ThreadPoolExecutor(WRITERS) as pool:
        running = [pool.submit(commit_all, number) for number in range(WRITERS)]
        try:
            eventually(lambda: min(committed) > 0, what="all writers have committed")
            yield committed
        finally:
            is_ending.set()
    for each in running:
        each.result()


def test_a_collection_moves_to_a_shard_that_coordinates_commits(
    client: Client, database: Database[Document], placed: Documents
) -> None:
    with commits(placed) as committed:
        for number in range(MOVES):
            shard_collection(database, f"moved{number}", {"key": 1})
            moved = database[f"moved{number}"]
            moved.insert_one({"key": 1})
            client.admin.command("moveChunk", moved.full_name, find={"key": 1}, to=UPPER, maxTimeMS=MOVE_MS_MAX)
            assert placement(client, moved.full_name) == [UPPER]
            assert moved.count_documents({}) == 1
    counted = {document["key"]: document["n"] for document in placed.find()}
    assert counted == {key: committed[number] for number in range(WRITERS) for key in (number, SPLIT_AT + number)}
    assert placement(client, placed.full_name) == [LOWER, UPPER]
