"""Sharded collections of every kind of key, and what their documents need."""

import random
from dataclasses import dataclass
from typing import Any, Final

from bson.int64 import Int64

from tests.integration.sharded import LOWER, UPPER, chunks
from tests.local_cluster import Client

Document = dict[str, Any]

KEYS: Final = 1000
WORDS: Final = ("Apple", "apple", "APPLE", "Mango", "mango", "Zebra", "zebra")


@dataclass(frozen=True, eq=False)
class World:
    """A sharded collection of some database.

    Attributes:
        key: the shard key pattern.
        splits: its first split points; every second chunk is moved to `UPPER`.
        unique: the key of a unique index besides the one on ``_id``; None if there is none.
    """

    name: str
    key: Document
    splits: tuple[Document, ...]
    unique: Document | None = None

    def shard_key(self, choice: random.Random, identity: str) -> Document:
        """Fields of a new document that place it, one value each of the shard key's and the unique index's fields."""
        if "a" not in self.key:
            return {}
        fields: Document = {"a": choice.randrange(KEYS)}
        if "b" in self.key:
            fields["b"] = choice.choice(["", "m", "z"])
        if self.unique is not None:
            fields["u"] = identity
        return fields

    def query(self, document: Document) -> Document:
        """A filter for exactly one document, which names its shard key."""
        return {field: document[field] for field in (*self.key, "_id")}

    def bound(self, choice: random.Random) -> Document:
        """A random bound of a range."""
        if self.key.get("_id") == "hashed":
            return {"_id": Int64(choice.randrange(-(1 << 62), 1 << 62))}
        if "word" in self.key:
            return {"word": choice.choice(WORDS)}
        if "_id" in self.key:
            return {"_id": f"{choice.randrange(256):02x}"}
        if "b" in self.key:
            return {"a": choice.randrange(KEYS), "b": choice.choice(["", "m", "z"])}
        return {"a": choice.randrange(KEYS)}


RANGED: Final = World("ranged", {"a": 1}, ({"a": 250}, {"a": 500}, {"a": 750}))
HASHED: Final = World("hashed", {"_id": "hashed"}, ())
COMPOUND: Final = World("compound", {"a": 1, "b": 1}, ({"a": 200, "b": "m"}, {"a": 500, "b": ""}, {"a": 800, "b": "z"}))
UNIQUE: Final = World("unique", {"a": 1}, ({"a": 333}, {"a": 666}), {"a": 1, "u": 1})


def create_world(client: Client, database: str, world: World) -> None:
    """Shard a collection and place its first chunks."""
    shard_world(client, database, world)
    for bound in world.splits[::2]:
        client.admin.command("moveChunk", f"{database}.{world.name}", find=bound, to=UPPER)


def shard_world(client: Client, database: str, world: World) -> None:
    """Shard a collection and split it; what an earlier attempt has done is not done again."""
    admin, namespace = client.admin, f"{database}.{world.name}"
    admin.command("enableSharding", database, primaryShard=LOWER)
    admin.command("shardCollection", namespace, key=world.key)
    if world.unique is not None:
        client[database][world.name].create_index(list(world.unique.items()), unique=True)
    bounds = [chunk["min"] for chunk in chunks(client, namespace)]
    for bound in world.splits:
        if bound not in bounds:
            admin.command("split", namespace, middle=bound)
