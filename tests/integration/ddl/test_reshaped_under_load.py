"""Collections whose shape changes while two routers write to them and read them, without effect on the clients."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import pytest

from tests.integration.sharded import SPLIT_AT, Documents, chunks
from tests.integration.waiting import eventually
from tests.local_cluster import Client


def write(client: Client, placed: Documents, first: int, written: list[int], stop: Event) -> None:
    """Insert documents on both shards, and find each of them in reads of one shard and of all."""
    collection = client[placed.database.name][placed.name]
    number = first
    while not stop.is_set():
        key = number * 7 % (2 * SPLIT_AT)
        collection.insert_one({"_id": number, "key": key, "b": number % 5})
        written.append(number)
        found = collection.update_one({"_id": number, "key": key}, {"$set": {"seen": True}})
        assert found.matched_count == 1, number
        assert collection.count_documents({"_id": number}) == 1
        assert collection.find_one({"_id": number, "key": key}) is not None
        number += 1


def refine(client: Client, placed: Documents) -> Documents:
    client.admin.command("refineCollectionShardKey", placed.full_name, key={"key": 1, "b": 1})
    assert all(set(chunk["min"]) == {"key", "b"} for chunk in chunks(client, placed.full_name))
    return placed


@pytest.mark.parametrize("change", [refine], ids=lambda change: change.__name__)
def test_no_write_is_lost_and_none_fails(
    routers: tuple[Client, Client], placed: Documents, change: Callable[[Client, Documents], Documents]
) -> None:
    placed.create_index([("key", 1), ("b", 1)])
    stop, written = Event(), [list[int](), list[int]()]
    with ThreadPoolExecutor(2) as pool:
        running = [
            pool.submit(write, router, placed, n * 1_000_000, written[n], stop) for n, router in enumerate(routers)
        ]
        try:
            eventually(lambda: all(len(each) > 20 for each in written))
            reshaped = change(routers[0], placed)
            before = [len(each) for each in written]
            eventually(lambda: all(len(each) > count + 20 for each, count in zip(written, before, strict=True)))
        finally:
            stop.set()
        for each in running:
            each.result(30)
    expected = sorted(written[0] + written[1])
    for router in routers:
        found = router[reshaped.database.name][reshaped.name].find({}, {"_id": 1})
        assert sorted(document["_id"] for document in found) == expected
    database = reshaped.database
    assert database.command("checkMetadataConsistency", 1)["cursor"]["firstBatch"] == []


def test_a_sharded_collection_is_renamed_under_load(routers: tuple[Client, Client], placed: Documents) -> None:
    """Documents written under either name end up where the name leads, and none is in both or in none."""
    stop, written = Event(), list[int]()
    database = placed.database

    def insert() -> None:
        number = 0
        while not stop.is_set():
            routers[1][database.name].ranged.insert_one({"_id": number, "key": number * 7 % (2 * SPLIT_AT)})
            written.append(number)
            number += 1

    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(insert)
        try:
            eventually(lambda: len(written) > 20)
            placed.rename("renamed")
            before = len(written)
            eventually(lambda: len(written) > before + 20)
        finally:
            stop.set()
        running.result(30)
    old, new = ([document["_id"] for document in database[name].find({}, {"_id": 1})] for name in ("ranged", "renamed"))
    assert sorted(old + new) == written
    assert max(new) < min(old)
    assert database.command("checkMetadataConsistency", 1)["cursor"]["firstBatch"] == []
