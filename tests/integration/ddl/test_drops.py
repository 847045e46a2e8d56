"""Drops while clients write through both routers, so that one of them always has an outdated placement."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pymongo.database import Database
from pymongo.errors import PyMongoError

from tests.integration.sharded import Document, shard_collection
from tests.integration.waiting import eventually
from tests.local_cluster import Client, RunningCluster

ROUNDS = 3


@contextmanager
def writing(*clients: Client, database: str, name: str) -> Iterator[list[int]]:
    """Insert through each router until the block ends; yields the numbers of acknowledged inserts. None fails."""
    is_over = threading.Event()
    counts = [0] * len(clients)
    failures: list[int] = []

    def write(number: int, collection: Any) -> None:  # noqa: ANN401 - of pymongo
        while not is_over.is_set():
            try:
                collection.insert_one({})
                counts[number] += 1
            except PyMongoError:
                failures.append(number)

    collections = [client[database][name] for client in clients]
    threads = [threading.Thread(target=write, args=pair) for pair in enumerate(collections)]
    for thread in threads:
        thread.start()
    try:
        yield counts
    finally:
        is_over.set()
        for thread in threads:
            thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    assert not failures


def test_collection_dropped_while_routers_write_can_be_sharded_again(
    client: Client,
    other_client: Client,
    database: Database[Document],
    lower_mongod: Client,
    upper_mongod: Client,
) -> None:
    """Inserts after a drop create the collection again, unsharded, on the primary shard only."""
    for _ in range(ROUNDS):
        shard_collection(database, "c", {"_id": "hashed"})
        with writing(client, other_client, client, other_client, database=database.name, name="c") as counts:
            eventually(lambda: all(counts), what="all have written")
            other_client[database.name].drop_collection("c")
            database.drop_collection("c")
        assert upper_mongod[database.name].list_collection_names() == []
        database.drop_collection("c")
        assert lower_mongod[database.name].list_collection_names() == []


def test_a_database_is_dropped_with_collections_that_cannot_be_dropped_alone(
    cluster: RunningCluster, database: Database[Document], lower_mongod: Client, upper_mongod: Client
) -> None:
    """Such as the collection of users, which a restored dump may have."""
    for name in ("system.users", "ordinary"):
        database[name].insert_one({})
    with cluster.direct("router.0", socketTimeoutMS=SECONDS_MAX * 1000) as impatient:
        impatient.drop_database(database.name)
    for mongod in (lower_mongod, upper_mongod):
        assert mongod[database.name].list_collection_names() == []
    database["ordinary"].insert_one({})


SECONDS_MAX = 30
