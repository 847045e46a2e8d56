"""Sharded collections whose chunks are on both shards, and the catalog's view of them."""

from collections.abc import Mapping
from itertools import pairwise
from typing import Any, Final

from bson.binary import UuidRepresentation
from bson.codec_options import CodecOptions
from pymongo.collection import Collection
from pymongo.database import Database

from tests.local_cluster import Client

Document = dict[str, Any]
Documents = Collection[Document]

LOWER: Final = "shard0"
"""The primary shard of databases of these tests; owns the keys below `SPLIT_AT`."""
UPPER: Final = "shard1"
SPLIT_AT: Final = 500

CATALOG_OPTIONS: Final = CodecOptions[Document](uuid_representation=UuidRepresentation.STANDARD)


def shard_by_range(
    database: Database[Document],
    name: str = "ranged",
    *,
    key: str = "key",
    split_at: Any = SPLIT_AT,  # noqa: ANN401 - a key of any type
) -> Documents:
    """A new collection sharded on ``{key: 1}``: keys below ``split_at`` are on `LOWER`, the others on `UPPER`."""
    namespace = f"{database.name}.{name}"
    admin = database.client.admin
    shard_collection(database, name, {key: 1})
    admin.command("split", namespace, middle={key: split_at})
    admin.command("moveChunk", namespace, find={key: split_at}, to=UPPER)
    return database[name]


def shard_by_hash(database: Database[Document], name: str = "hashed", *, key: str = "_id") -> Documents:
    """A new collection sharded on ``{key: "hashed"}``, two chunks on each shard."""
    shard_collection(database, name, {key: "hashed"})
    return database[name]


def shard_collection(
    database: Database[Document],
    name: str,
    key: Mapping[str, Any],
    **options: Any,  # noqa: ANN401 - options of any type
) -> Document:
    """Run ``shardCollection`` in a database whose primary shard is `LOWER`."""
    admin = database.client.admin
    admin.command("enableSharding", database.name, primaryShard=LOWER)
    return admin.command("shardCollection", f"{database.name}.{name}", key=dict(key), **options)


def catalog_entry(client: Client, namespace: str) -> Document | None:
    """The document of ``config.collections``; None if the collection is not sharded."""
    return client.config.get_collection("collections", CATALOG_OPTIONS).find_one({"_id": namespace})


def chunks(client: Client, namespace: str) -> list[Document]:
    """The documents of ``config.chunks`` in the order of their bounds."""
    entry = catalog_entry(client, namespace)
    assert entry is not None, f"{namespace} is not sharded"
    return chunks_of(client, entry)


def chunks_of(client: Client, entry: Document) -> list[Document]:
    """As `chunks`, of the collection with an entry of ``config.collections``, even if it is not there any more."""
    found = client.config.get_collection("chunks", CATALOG_OPTIONS).find({"uuid": entry["uuid"]})
    return list(found.sort("min", 1))


def placement(client: Client, namespace: str) -> list[str]:
    """The shard of every chunk in the order of their bounds."""
    return [chunk["shard"] for chunk in chunks(client, namespace)]


def lastmods(client: Client, namespace: str) -> list[tuple[int, int]]:
    """Major and minor version of every chunk in the order of their bounds."""
    return [(chunk["lastmod"].time, chunk["lastmod"].inc) for chunk in chunks(client, namespace)]


def changes(client: Client, namespace: str, what: str) -> list[Document]:
    """The entries of ``config.changelog`` of one kind, oldest first."""
    return list(client.config.changelog.find({"ns": namespace, "what": what}).sort("time", 1))


def assert_tiled(found: list[Document]) -> None:
    """Check that chunks have no gaps and do not overlap."""
    for before, after in pairwise(found):
        assert before["max"] == after["min"]
