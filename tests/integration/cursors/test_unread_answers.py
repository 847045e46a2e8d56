"""Clients that have asked for results and do not read them hold up no change of other clients."""

from collections.abc import Callable, Iterator

import pytest
from bson.int64 import Int64
from pymongo.database import Database

from tests.integration.raw_client import RawClient, raw_client
from tests.integration.sharded import LOWER, SPLIT_AT, UPPER, Document, shard_by_range, shard_collection
from tests.local_cluster import Client, RunningCluster

DOCUMENTS = 900
TEXT = "x" * 20_000
"""Together more than fits into sockets, on each shard."""


@pytest.fixture
def filled(client: Client, database: Database[Document]) -> Database[Document]:
    collection = shard_by_range(database)
    for half in (0, SPLIT_AT):
        collection.insert_many({"_id": key, "key": key, "text": TEXT} for key in range(half, half + DOCUMENTS // 2))
    return database


@pytest.fixture(params=["asked ahead", "first batch of one shard", "first batch of both"])
def slow(cluster: RunningCluster, filled: Database[Document], request: pytest.FixtureRequest) -> Iterator[RawClient]:
    """A client whose router or shard has an unread answer."""
    with raw_client(cluster.address("router.0")) as slow:
        if request.param == "asked ahead":
            opened = slow.command({"find": "ranged", "batchSize": 101}, db=filled.name)
            more = {"getMore": Int64(opened["cursor"]["id"]), "collection": "ranged"}
            for _ in range(2):
                assert slow.command(more, db=filled.name)["cursor"]["id"]
        else:
            on_one = {"key": {"$gte": SPLIT_AT}} if request.param == "first batch of one shard" else {}
            find = {"find": "ranged", "filter": on_one, "batchSize": DOCUMENTS}
            slow.send_command(find, db=filled.name)
            assert slow.socket.recv(16)  # it has begun to arrive
        yield slow


def move_another(client: Client, database: Database[Document]) -> None:
    shard_collection(database, "other", {"key": 1})
    client.admin.command("moveChunk", f"{database.name}.other", find={"key": 0}, to=UPPER)


def move(client: Client, database: Database[Document]) -> None:
    client.admin.command("moveChunk", f"{database.name}.ranged", find={"key": 0}, to=UPPER)


def move_back(client: Client, database: Database[Document]) -> None:
    client.admin.command("moveChunk", f"{database.name}.ranged", find={"key": SPLIT_AT}, to=LOWER)


def drop(_: Client, database: Database[Document]) -> None:
    database.drop_collection("ranged")


def rename(_: Client, database: Database[Document]) -> None:
    database["ranged"].rename("renamed")


def modify(_: Client, database: Database[Document]) -> None:
    database.command("collMod", "ranged", validator={"a": {"$ne": 1}})


def create_index(_: Client, database: Database[Document]) -> None:
    database["ranged"].create_index("text")


def refine(client: Client, database: Database[Document]) -> None:
    database["ranged"].create_index([("key", 1), ("_id", 1)])
    client.admin.command("refineCollectionShardKey", f"{database.name}.ranged", key={"key": 1, "_id": 1})


def reshard(client: Client, database: Database[Document]) -> None:
    client.admin.command("reshardCollection", f"{database.name}.ranged", key={"_id": 1})


def move_primary(client: Client, database: Database[Document]) -> None:
    database["unsharded"].insert_one({})
    client.admin.command("movePrimary", database.name, to=UPPER)


SECONDS_MAX = 30
"""Less than an idle cursor is kept, and more than a change takes on any machine."""


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize(
    "change", [move_another, move, move_back, drop, rename, modify, create_index, refine, reshard, move_primary]
)
def test_no_change_waits_for_a_client_that_does_not_read(
    cluster: RunningCluster, filled: Database[Document], change: Callable[[Client, Database[Document]], None]
) -> None:
    with cluster.direct("router.0", socketTimeoutMS=SECONDS_MAX * 1000) as impatient:
        change(impatient, impatient[filled.name])
