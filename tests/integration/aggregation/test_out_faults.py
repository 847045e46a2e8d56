"""``$out`` whose router or whose shards die meanwhile: the target is whole, old or new, and nothing else is left."""

import threading
from contextlib import suppress

import pytest
from pymongo.errors import PyMongoError

from tests.integration.sharded import Document, Documents
from tests.integration.waiting import eventually
from tests.local_cluster import Client, RunningCluster

COUNT = 60
OLD: list[Document] = [{"_id": number, "old": True} for number in range(10)]

SLOWLY: Document = {"body": "function(key) { sleep(100); return key; }", "args": ["$_id"], "lang": "js"}
STAGES: list[Document] = [{"$group": {"_id": "$key"}}, {"$set": {"new": {"$function": SLOWLY}}}]


def temporary(mongod: Client, db: str) -> list[str]:
    """The collections that a ``$out`` has not renamed yet; none while the mongod does not answer."""
    with suppress(PyMongoError):
        return [name for name in mongod[db].list_collection_names() if name.startswith("tmp.agg_out")]
    return []


@pytest.mark.parametrize("victim", ["router.1", "shard0.0.shardd", "shard0.0.mongod", "shard1.0.mongod"])
def test_the_target_is_replaced_as_a_whole_or_not_at_all(
    cluster: RunningCluster,
    client: Client,
    lower_mongod: Client,
    placed: Documents,
    victim: str,
) -> None:
    database = placed.database
    placed.insert_many({"key": n * 10} for n in range(COUNT))
    database["target"].insert_many(OLD)

    def write() -> None:
        with cluster.direct("router.1") as writing, suppress(PyMongoError):
            writing[database.name][placed.name].aggregate([*STAGES, {"$out": "target"}])

    writer = threading.Thread(target=write)
    writer.start()
    eventually(lambda: temporary(lower_mongod, database.name), what="the shard writes")
    try:
        cluster.kill(victim)
        writer.join(120)
    finally:
        cluster.restart(victim)
    eventually(lambda: bool(lower_mongod.admin.command("hello")["isWritablePrimary"]), what="the shard is there again")

    def is_over() -> bool:
        return sorted(lower_mongod[database.name].list_collection_names()) == [placed.name, "target"]

    eventually(is_over, what="nothing but the collections is left")

    def is_whole() -> bool:
        with suppress(PyMongoError):
            found = list(client[database.name]["target"].find(sort=[("_id", 1)]))
            return found == OLD or found == [{"_id": n * 10, "new": n * 10} for n in range(COUNT)]
        return False

    eventually(is_whole, what="the target is whole")
