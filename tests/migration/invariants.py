"""Invariants of a collection and of the cluster after a migration, however it ended."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import bson

from shardwright.sharding.shard_key import ShardKeyPattern
from shardwright.wire.rawbson import encode_document
from tests.integration.sharded import CATALOG_OPTIONS, catalog_entry, chunks
from tests.integration.waiting import eventually
from tests.migration.fault_cluster import FaultCluster

Document = dict[str, Any]

CLEAN_SECONDS_MAX: Final = 45.0

MIGRATION_COLLECTIONS: Final = (
    *("rangeDeletions", "migrationCoordinators", "migrationRecipients", "collection_critical_sections"),
    *("migrationAttempts", "migrationCheckpoints"),
)
"""The collections of ``config`` on each shard that have documents only during a migration or a range deletion."""


@dataclass(frozen=True)
class Placement:
    """The owner of each key, according to the catalog.

    Attributes:
        bounds: the encoded lower bound of each chunk, ascending, with its shard.
    """

    pattern: ShardKeyPattern
    bounds: tuple[tuple[bytes, str], ...]

    @classmethod
    def of(cls, cluster: FaultCluster, namespace: str) -> "Placement":
        """Read the placement of a collection, and check its chunks.

        Raises:
            AssertionError: the chunks leave a gap or overlap, or their versions do not fit a move.
        """
        router = cluster.router(1)
        entry = catalog_entry(router, namespace)
        assert entry is not None, f"{namespace} is not sharded"
        found = chunks(router, namespace)
        pattern = ShardKeyPattern.from_mapping(entry["key"])
        check_chunks(pattern, found)
        return cls(pattern, tuple((_key_bytes(pattern, chunk["min"]), chunk["shard"]) for chunk in found))

    def owner(self, document: Document) -> str:
        """The shard that owns a document."""
        key = self.pattern.key_bytes_of_document(bson.encode(document))
        return max((bound for bound in self.bounds if bound[0] <= key), key=lambda bound: bound[0])[1]


def check_chunks(pattern: ShardKeyPattern, found: list[Document]) -> None:
    """Check that chunks tile the key space, have distinct versions, and are where their history says.

    Raises:
        AssertionError: they are not.
    """
    assert _key_bytes(pattern, found[0]["min"]) == pattern.global_min_bytes(), found[0]
    assert _key_bytes(pattern, found[-1]["max"]) == pattern.global_max_bytes(), found[-1]
    for before, after in pairwise(found):
        assert before["max"] == after["min"], f"gap or overlap between {before} and {after}"
    versions = [(chunk["lastmod"].time, chunk["lastmod"].inc) for chunk in found]
    assert len(set(versions)) == len(versions), f"two chunks have one version: {versions}"
    for chunk in found:
        history = chunk["history"]
        assert history[0]["shard"] == chunk["shard"], chunk
        times = [entry["validAfter"] for entry in history]
        assert times == sorted(times, reverse=True), chunk


def check_collection(cluster: FaultCluster, namespace: str, model: Mapping[Any, Document]) -> Placement:
    """Check everything about a collection without writers whose migrations are over.

    Raises:
        AssertionError: a document is lost, duplicated, visible though an orphan, on the wrong shard, or left over.
    """
    check_visible(cluster, namespace, model)
    wait_clean(cluster)
    placement = Placement.of(cluster, namespace)
    check_stored(cluster, namespace, model, placement)
    check_visible(cluster, namespace, model)
    return placement


def check_visible(cluster: FaultCluster, namespace: str, model: Mapping[Any, Document]) -> None:
    """Check that each router shows every document exactly once and up to date, whatever orphans there may be.

    Raises:
        AssertionError: it does not.
    """
    database, _, name = namespace.partition(".")
    for index in range(len(cluster.router_addresses)):
        collection = cluster.router(index)[database][name]
        # First a count that reads no documents: it must not see orphans either.
        assert collection.count_documents({}) == len(model), (
            f"router.{index} counts wrong; {_difference(collection, model)}"
        )
        found = list(collection.find())
        assert len({document["_id"] for document in found}) == len(found), f"router.{index} shows a document twice"
        assert {document["_id"]: document for document in found} == dict(model), _difference(collection, model)
        for document in list(model.values())[:3]:
            assert collection.find_one({"_id": document["_id"]}) == document


def check_stored(cluster: FaultCluster, namespace: str, model: Mapping[Any, Document], placement: Placement) -> None:
    """Check that every mongod has exactly the documents that its shard owns.

    Raises:
        AssertionError: one has other documents.
    """
    database, _, name = namespace.partition(".")
    owned: dict[str, dict[Any, Document]] = {}
    for identity, document in model.items():
        owned.setdefault(placement.owner(document), {})[identity] = document
    for shard in cluster.running.shards:
        for mongod in cluster.mongods_of(shard):
            expected = owned.get(shard, {})

            def differs(mongod: str = mongod, expected: Mapping[Any, Document] = expected) -> str:
                stored = {document["_id"]: document for document in cluster.client(mongod)[database][name].find()}
                return "" if stored == expected else _described(stored, expected)

            # Secondaries apply the primary's writes a moment later.
            eventually(lambda: not differs(), what=f"{mongod} holds what {shard} owns ({differs()})")


def wait_clean(cluster: FaultCluster, *, within: float = CLEAN_SECONDS_MAX) -> None:
    """Wait until no shard remembers a migration or has a range to delete.

    Raises:
        AssertionError: one still does.
    """

    def left() -> Iterator[tuple[str, list[Document]]]:
        for shard in cluster.running.shards:
            config = cluster.client(f"{shard}.{cluster.primary_index(shard)}.mongod").get_database(
                "config", CATALOG_OPTIONS
            )
            for name in MIGRATION_COLLECTIONS:
                documents = list(config[name].find())
                if documents:
                    yield f"{shard} {name}", documents

    try:
        # Asked many times, so one that has something is enough.
        eventually(lambda: next(left(), None) is None, within=within)
    except AssertionError:
        raise AssertionError(f"left over after {within} s: {dict(left())}") from None


def wait_decided(cluster: FaultCluster, *, within: float = CLEAN_SECONDS_MAX) -> None:
    """Wait until no transaction is prepared on any shard, and no shard coordinates a commit.

    Raises:
        AssertionError: one still is, or does.
    """

    def left() -> dict[str, list[Document]]:
        found = {}
        for shard in cluster.running.shards:
            config = cluster.client(f"{shard}.{cluster.primary_index(shard)}.mongod").get_database(
                "config", CATALOG_OPTIONS
            )
            found[f"{shard} transactions"] = list(config["transactions"].find({"state": "prepared"}))
            found[f"{shard} coordinators"] = list(config["transaction_coordinators"].find())
        return {name: documents for name, documents in found.items() if documents}

    try:
        eventually(lambda: not left(), within=within)
    except AssertionError:
        raise AssertionError(f"not decided after {within} s: {left()}") from None


def _difference(collection: Any, model: Mapping[Any, Document]) -> str:  # noqa: ANN401 - a pymongo collection
    return _described({document["_id"]: document for document in collection.find()}, model)


def _described(found: Mapping[Any, Document], model: Mapping[Any, Document]) -> str:
    missing = [model[identity] for identity in model.keys() - found.keys()]
    extra = [found[identity] for identity in found.keys() - model.keys()]
    other = [
        (found[identity], model[identity])
        for identity in model.keys() & found.keys()
        if found[identity] != model[identity]
    ]
    kinds: dict[str, list[Any]] = {"missing": missing, "too many": extra, "differing": other}
    return ", ".join(f"{kind}: {len(what)} {what[:3]}" for kind, what in kinds.items())


def _key_bytes(pattern: ShardKeyPattern, key: Document) -> bytes:
    return pattern.key_bytes(encode_document(key))
