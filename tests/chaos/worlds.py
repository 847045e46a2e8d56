"""The four collections of a run."""

import random
from dataclasses import dataclass
from typing import Any, Final

from bson.int64 import Int64

from tests.integration.sharded import LOWER, UPPER
from tests.local_cluster import Client

Document = dict[str, Any]

DATABASE: Final = "chaos"
KEYS: Final = 1000


@dataclass(frozen=True, eq=False)
class World:
    """A sharded collection and what its documents need.

    Attributes:
        key: the shard key pattern.
        splits: the bounds at which it is split to begin with; every second chunk is moved to `UPPER`.
        unique: the key of a unique index, None if there is none but that of ``_id``.
    """

    name: str
    key: Document
    splits: tuple[Document, ...]
    unique: Document | None = None

    @property
    def namespace(self) -> str:
        """Its full name."""
        return f"{DATABASE}.{self.name}"

    def shard_key(self, choice: random.Random, identity: str) -> Document:
        """Fields of a new document that place it, one value each of the shard key's and the unique index's fields."""
        if self.name == "hashed":
            return {}
        fields: Document = {"a": choice.randrange(KEYS)}
        if self.name == "compound":
            fields["b"] = choice.choice(["", "m", "z"])
        if self.unique is not None:
            fields["u"] = identity
        return fields

    def query(self, document: Document) -> Document:
        """A filter for exactly one document, which names its shard key."""
        return {field: document[field] for field in (*self.key, "_id")}

    def bound(self, choice: random.Random) -> Document:
        """A random bound of a range."""
        if self.name == "hashed":
            return {"_id": Int64(choice.randrange(-(1 << 62), 1 << 62))}
        if self.name == "compound":
            return {"a": choice.randrange(KEYS), "b": choice.choice(["", "m", "z"])}
        return {"a": choice.randrange(KEYS)}


WORLDS: Final = (
    World("ranged", {"a": 1}, ({"a": 250}, {"a": 500}, {"a": 750})),
    World("hashed", {"_id": "hashed"}, ()),
    World("compound", {"a": 1, "b": 1}, ({"a": 200, "b": "m"}, {"a": 500, "b": ""}, {"a": 800, "b": "z"})),
    World("unique", {"a": 1}, ({"a": 333}, {"a": 666}), {"a": 1, "u": 1}),
)


def create_worlds(client: Client) -> None:
    """Shard the collections and place their first chunks."""
    admin = client.admin
    admin.command("enableSharding", DATABASE, primaryShard=LOWER)
    for world in WORLDS:
        admin.command("shardCollection", world.namespace, key=world.key)
        if world.unique is not None:
            client[DATABASE][world.name].create_index(list(world.unique.items()), unique=True)
        for bound in world.splits:
            admin.command("split", world.namespace, middle=bound)
        for bound in world.splits[::2]:
            admin.command("moveChunk", world.namespace, find=bound, to=UPPER)
