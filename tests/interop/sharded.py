"""Collections on a genuine cluster, sharded and placed through our router."""

from typing import Any, Final

from pymongo.collection import Collection
from pymongo.database import Database

from tests.genuine_cluster import SHARDS
from tests.local_cluster import Client

Document = dict[str, Any]
Documents = Collection[Document]

SPLIT_AT: Final = 50


def split_parts(database: Database[Document], name: str = "ranged", *, count: int = 100) -> Documents:
    """A collection sharded on ``{key: 1}`` with ``count`` documents; the first shard has the keys below `SPLIT_AT`.

    The genuine servers move the other half once the documents are there.
    """
    namespace = f"{database.name}.{name}"
    admin = database.client.admin
    admin.command("shardCollection", namespace, key={"key": 1})
    database[name].insert_many([{"_id": number, "key": number, "even": number % 2 == 0} for number in range(count)])
    admin.command("split", namespace, middle={"key": SPLIT_AT})
    admin.command("moveChunk", namespace, find={"key": SPLIT_AT}, to=SHARDS[1])
    return database[name]


def chunks(client: Client, namespace: str) -> list[Document]:
    """The chunks of a collection in the order of their bounds, as the router reads them."""
    entry = client.config.collections.find_one({"_id": namespace})
    assert entry is not None, f"{namespace} is not sharded"
    return list(client.config.chunks.find({"uuid": entry["uuid"]}).sort("min", 1))


def placement(client: Client, namespace: str) -> list[str]:
    """The shards of the chunks in the order of their bounds."""
    return [chunk["shard"] for chunk in chunks(client, namespace)]


def counter(client: Client, name: str) -> int:
    """A number of the router's routing cache, from ``serverStatus``."""
    return int(client.admin.command("serverStatus")["shardingStatistics"]["catalogCache"][name])
