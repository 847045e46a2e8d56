"""The balancer on a cluster: data becomes even while clients write, and nothing is lost."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import pytest
from bson.min_key import MinKey
from bson.son import SON
from pymongo import WriteConcern
from pymongo.database import Database

from tests.integration.sharded import LOWER, UPPER, Document, Documents, chunks, placement, shard_collection
from tests.integration.waiting import eventually
from tests.integration.workload import Workload
from tests.local_cluster import Client, running_cluster

EVEN_SECONDS_MAX: Final = 240.0
DOCUMENT_BYTES: Final = 20_000


@contextmanager
def balancer_on(client: Client) -> Iterator[None]:
    client.admin.command("balancerStart")
    try:
        yield
    finally:
        client.admin.command("balancerStop")


def fill(database: Database[Document], name: str, megabytes: int) -> str:
    """A collection with a chunk size of 1 MB, all of whose documents are on its primary shard."""
    shard_collection(database, name, {"key": 1})
    stock(database[name], megabytes)
    return f"{database.name}.{name}"


def stock(collection: Documents, megabytes: int) -> None:
    """Insert documents with keys from 0 to 1000, and set the chunk size to 1 MB."""
    collection.database.client.admin.command("configureCollectionBalancing", collection.full_name, chunkSize=1)
    filler = "x" * DOCUMENT_BYTES
    count = (megabytes << 20) // DOCUMENT_BYTES
    documents = [{"key": number * 1000 / count, "filler": filler, "stock": True} for number in range(count)]
    collection.with_options(write_concern=WriteConcern("majority")).insert_many(documents, ordered=False)


def is_even(client: Client, namespace: str) -> bool:
    reply = client.admin.command("balancerCollectionStatus", namespace)
    return bool(reply["balancerCompliant"])


def balance_under_load(client: Client, database: Database[Document], megabytes: int) -> None:
    namespace = fill(database, "uneven", megabytes)
    collection = database.uneven
    stocked = collection.count_documents({"stock": True})
    status = client.admin.command("balancerCollectionStatus", namespace)
    assert (status["firstComplianceViolation"], status["chunkSize"]) == ("chunksImbalance", 1.0)
    writers = Workload(collection, writers=2)
    writers.start()
    try:
        with balancer_on(client):
            eventually(lambda: is_even(client, namespace), within=EVEN_SECONDS_MAX, what="the data are even")
            writers.wait_for_progress()
    finally:
        writers.stop()
    assert writers.errors == []
    writers.check(list(collection.find({"stock": None})))
    assert collection.count_documents({"stock": True}) == stocked
    rounds = client.config.actionlog.find({"what": "balancer.round", "details.errorOccurred": False})
    assert sum(each["details"]["chunksMoved"] for each in rounds) > 0


def test_two_shards_become_even_under_load(client: Client, database: Database[Document]) -> None:
    balance_under_load(client, database, 7)


def test_buckets_of_time_series_follow_their_zones(client: Client, database: Database[Document]) -> None:
    options = {"timeField": "at", "metaField": "sensor"}
    shard_collection(database, "series", SON([("sensor", 1), ("at", 1)]), timeseries=options)
    buckets, admin = f"{database.name}.system.buckets.series", client.admin
    database.series.insert_many([{"at": datetime(2024, 1, 1), "sensor": n % 10, "value": n} for n in range(40)])
    admin.command("addShardToZone", UPPER, zone="some")
    try:
        admin.command("updateZoneKeyRange", buckets, min={"meta": 3}, max={"meta": 6}, zone="some")
        status = admin.command("balancerCollectionStatus", buckets)
        assert status["firstComplianceViolation"] == "zoneViolation"
        with balancer_on(client):
            eventually(lambda: is_even(client, buckets), within=EVEN_SECONDS_MAX, what="the buckets are in their zone")
        assert [chunk["min"]["meta"] for chunk in chunks(client, buckets)] == [MinKey(), 3, 6]
        assert placement(client, buckets) == [LOWER, UPPER, LOWER]
        assert sorted(each["value"] for each in database.series.find()) == list(range(40))
    finally:
        admin.command("updateZoneKeyRange", buckets, min={"meta": 3}, max={"meta": 6}, zone=None)
        admin.command("removeShardFromZone", UPPER, zone="some")


@pytest.mark.exhaustive
def test_four_shards_become_even_under_load(tmp_path: Path) -> None:
    with running_cluster(tmp_path, "--shards", "4") as cluster, cluster.client() as client:
        balance_under_load(client, client.balanced, 40)
        sizes = {
            shard["shard"]: size
            for shard in client.admin.command("balancerExplain")["shards"]
            for size in [_size(client, "balanced.uneven", shard["shard"])]
        }
        assert max(sizes.values()) - min(sizes.values()) < 3 << 20


def _size(client: Client, namespace: str, shard: str) -> int:
    (found,) = client.admin.command("balancerExplain", namespace)["collections"]
    return int(found["bytes"].get(shard, 0))


def test_balancing_of_a_collection_can_be_disabled(client: Client, database: Database[Document]) -> None:
    """As mongosh's ``sh.disableBalancing`` and ``sh.enableBalancing`` do it."""
    namespace = fill(database, "disabled", 4)

    def explain() -> tuple[list[Any], list[Any]]:
        reply = client.admin.command("balancerExplain", namespace)
        return [each["rule"] for each in reply["decisions"]], [each["reason"] for each in reply["skipped"]]

    assert explain() == (["chunksImbalance"], [])
    entries = client.config.collections.with_options(write_concern=WriteConcern("majority"))
    entries.update_one({"_id": namespace}, {"$set": {"noBalance": True}})
    assert explain() == ([], ["balancing of the collection is disabled (noBalance)"])
    entries.update_one({"_id": namespace}, {"$set": {"noBalance": False}})
    assert explain() == (["chunksImbalance"], [])
    client.admin.command("setAllowMigrations", namespace, allowMigrations=False)
    assert explain() == ([], ["migrations of the collection are not permitted (permitMigrations)"])


def test_a_chunk_of_one_key_becomes_jumbo(client: Client, database: Database[Document]) -> None:
    """Its donor refuses to move it, and it cannot be split."""
    namespace = f"{database.name}.one_key"
    shard_collection(database, "one_key", {"key": 1})
    client.admin.command("configureCollectionBalancing", namespace, chunkSize=1)
    database.one_key.insert_many([{"key": 7, "filler": "x" * DOCUMENT_BYTES} for _ in range(300)])
    for bound in (7, 8):
        client.admin.command("split", namespace, middle={"key": bound})
    client.admin.command("addShardToZone", UPPER, zone="jumbo")
    try:
        client.admin.command("updateZoneKeyRange", namespace, min={"key": 7}, max={"key": 8}, zone="jumbo")
        with balancer_on(client):
            eventually(lambda: chunks(client, namespace)[1].get("jumbo"), within=EVEN_SECONDS_MAX, what="it is jumbo")
        assert placement(client, namespace) == [LOWER] * 3
        client.admin.command("updateZoneKeyRange", namespace, min={"key": 7}, max={"key": 8}, zone=None)
        client.admin.command("clearJumboFlag", namespace, bounds=[{"key": 7}, {"key": 8}])
        assert not any(each.get("jumbo") for each in chunks(client, namespace))
    finally:
        client.admin.command("updateZoneKeyRange", namespace, min={"key": 7}, max={"key": 8}, zone=None)
        client.admin.command("removeShardFromZone", UPPER, zone="jumbo")


def test_zones_are_split_and_filled(client: Client, database: Database[Document]) -> None:
    namespace = fill(database, "zoned", 1)
    client.admin.command("addShardToZone", "shard1", zone="balanced")
    try:
        client.admin.command("updateZoneKeyRange", namespace, min={"key": 100}, max={"key": 200}, zone="balanced")
        assert (
            client.admin.command("balancerCollectionStatus", namespace)["firstComplianceViolation"] == "zoneViolation"
        )
        with balancer_on(client):
            eventually(lambda: is_even(client, namespace), within=EVEN_SECONDS_MAX, what="the zone is filled")
        uuid = client.config.collections.find_one({"_id": namespace})["uuid"]  # type: ignore[index]
        chunks = client.config.chunks.find({"uuid": uuid}).sort("min", 1)
        assert [(chunk["min"]["key"], chunk["shard"]) for chunk in chunks][1:] == [(100, "shard1"), (200, LOWER)]
    finally:
        client.admin.command("updateZoneKeyRange", namespace, min={"key": 100}, max={"key": 200}, zone=None)
        client.admin.command("removeShardFromZone", "shard1", zone="balanced")
