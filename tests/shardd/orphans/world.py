"""A sharded collection with orphans on one shard, and a plain one with the documents that the shard owns."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import bson
from pymongo import MongoClient
from pymongo.collection import Collection

from shardwright.sharding.shard_key import ShardKeyPattern
from tests.shardd.mini_cluster import MiniCluster
from tests.shardd.router_stand_in import ShardedNamespace

Document = dict[str, Any]


@dataclass
class World:
    """Both collections, on the mongod of ``sh0``.

    Attributes:
        sharded: the sharded collection; ``sh0`` has given a range of it to ``sh1``.
        stored: the same collection on its mongod.
        plain: the other collection, in the same database and with the same indexes.
        documents: the documents that `reset` stores, including orphans.
        owned_ids: the ids of the documents that ``sh0`` owns.
    """

    sharded: ShardedNamespace
    stored: Collection[dict[str, Any]]
    plain: Collection[dict[str, Any]]
    documents: Sequence[Document]
    owned_ids: frozenset[Any]

    @property
    def orphans(self) -> list[Document]:
        """The documents that ``sh0`` does not own."""
        return [each for each in self.documents if each["_id"] not in self.owned_ids]

    def reset(self) -> None:
        """Store all documents, some of them orphans, in the sharded collection, and the owned ones in the plain one."""
        self.stored.delete_many({})
        self.stored.insert_many(self.documents)
        self.plain.delete_many({})
        self.plain.insert_many([each for each in self.documents if each["_id"] in self.owned_ids])

    def run(self, command: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Run a command that names the collection ``c`` on the sharded collection and on the plain one."""
        reply = self.sharded.versioned(command)
        expected = self.plain.database.command(_renamed(command, self.plain.name), check=False)
        return _comparable(reply), _comparable(expected)

    def contents(self) -> tuple[list[Document], list[Document]]:
        """Return the owned documents of the sharded collection, and the documents of the plain one."""
        owned = list(self.stored.find({"_id": {"$nin": [each["_id"] for each in self.orphans]}}, sort=[("_id", 1)]))
        return owned, list(self.plain.find({}, sort=[("_id", 1)]))

    def stored_orphans(self) -> list[Document]:
        """The stored orphans."""
        return list(self.stored.find({"_id": {"$in": [each["_id"] for each in self.orphans]}}, sort=[("_id", 1)]))


def make_world(
    mini: MiniCluster,
    mongod: MongoClient[dict[str, Any]],
    sharded: ShardedNamespace,
    documents: Iterable[Document],
    moved: tuple[Document, Document] | None = None,
) -> World:
    """Move a range of a collection from ``sh0`` to ``sh1``, and leave documents behind.

    Args:
        mini: the cluster.
        mongod: a client of the mongod of ``sh0``.
        sharded: the collection, whose database cannot be used for anything else.
        documents: all documents, except those that ``sh1`` has always owned.
        moved: bounds of a chunk on ``sh0``; by default the first one.
    """
    mine = [chunk for chunk in sharded.chunks() if chunk["shard"] == "sh0"]
    low, high = moved or (mine[0]["min"], mine[0]["max"])
    pattern = ShardKeyPattern.from_mapping(sharded.key)
    bounds = [(chunk["min"], chunk["max"]) for chunk in mine]
    here = [each for each in documents if any(lies_in(pattern, each, *bound) for bound in bounds)]
    stored = mongod[sharded.db][sharded.collection]
    stored.insert_many(here)
    sharded.move(low, high, "sh1")
    plain = mongod[sharded.db]["plain"]
    options = stored.options()
    if "collation" in options:
        mongod[sharded.db].create_collection("plain", collation=options["collation"])
    for index in stored.list_indexes():
        if index["name"] != "_id_":
            plain.create_index(list(index["key"].items()), collation=index.get("collation"))
    owned = frozenset(each["_id"] for each in here if not lies_in(pattern, each, low, high))
    return World(sharded, stored, plain, sorted(here, key=lambda each: each["_id"]), owned)


def lies_in(pattern: ShardKeyPattern, document: Document, low: Document, high: Document) -> bool:
    """Whether the shard key of a document lies between bounds."""
    key = pattern.key_bytes_of_document(bson.encode(document))
    return pattern.key_bytes(bson.encode(low)) <= key < pattern.key_bytes(bson.encode(high))


def _renamed(command: Mapping[str, Any], collection: str) -> dict[str, Any]:
    return {name: _renamed(value, collection) if name == "explain" else value for name, value in command.items()} | (
        {next(iter(command)): collection} if "explain" not in command else {}
    )


def _comparable(reply: Mapping[str, Any]) -> dict[str, Any]:
    """The parts of a reply that must be equal for both collections."""
    names = ("n", "nModified", "values", "value", "lastErrorObject", "writeErrors", "code", "ok")
    found = {name: reply[name] for name in names if name in reply}
    if "cursor" in reply:
        found["documents"] = reply["cursor"]["firstBatch"]
    if "values" in found:
        found["values"] = sorted(found["values"], key=repr)
    return found
