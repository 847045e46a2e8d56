"""Defragmentation on a cluster while clients write: fewer chunks, no document lost."""

from typing import Final

from pymongo import WriteConcern
from pymongo.database import Database

from tests.integration.sharded import LOWER, UPPER, Document, shard_collection
from tests.integration.waiting import eventually
from tests.integration.workload import Workload
from tests.local_cluster import Client

FRAGMENTS: Final = 8
SECONDS_MAX: Final = 240.0


def fragment(database: Database[Document]) -> str:
    """Create a collection whose every other chunk is on the other shard; return its full name.

    The chunk size is the cluster's, so all chunks are small.
    """
    client, namespace = database.client, f"{database.name}.fragments"
    shard_collection(database, "fragments", {"key": 1})
    bounds = [number * 1000 // FRAGMENTS for number in range(1, FRAGMENTS)]
    for bound in bounds:
        client.admin.command("split", namespace, middle={"key": bound})
    for bound in bounds[::2]:
        client.admin.command("moveChunk", namespace, find={"key": bound}, to=UPPER)
    collection = database.fragments
    documents = [{"key": number, "stock": True} for number in range(1000)]
    collection.with_options(write_concern=WriteConcern("majority")).insert_many(documents)
    assert count_chunks(client, namespace) == FRAGMENTS
    assert {each["shard"] for each in chunks(client, namespace)} == {LOWER, UPPER}
    return namespace


def test_fragments_become_few_chunks_under_load(client: Client, database: Database[Document]) -> None:
    namespace, collection = fragment(database), database.fragments
    writers = Workload(collection, writers=2)
    writers.start()
    try:
        client.admin.command("balancerStart")
        client.admin.command("configureCollectionBalancing", namespace, defragmentCollection=True)
        status = client.admin.command("balancerCollectionStatus", namespace)
        assert status["firstComplianceViolation"] == "defragmentingChunks"
        eventually(
            lambda: not is_defragmented(client, namespace), within=SECONDS_MAX, what="the end of defragmentation"
        )
        writers.wait_for_progress()
    finally:
        client.admin.command("balancerStop")
        writers.stop()
    assert writers.errors == []
    writers.check(list(collection.find({"stock": None})))
    assert collection.count_documents({"stock": True}) == 1000
    assert count_chunks(client, namespace) == 1
    assert [each for each in chunks(client, namespace) if "estimatedDataSizeBytes" in each] == []


def chunks(client: Client, namespace: str) -> list[Document]:
    entry = client.config.collections.find_one({"_id": namespace})
    assert entry is not None
    return list(client.config.chunks.find({"uuid": entry["uuid"]}))


def count_chunks(client: Client, namespace: str) -> int:
    return len(chunks(client, namespace))


def is_defragmented(client: Client, namespace: str) -> bool:
    entry = client.config.collections.find_one({"_id": namespace})
    assert entry is not None
    return bool(entry.get("defragmentCollection"))
