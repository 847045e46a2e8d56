"""``refineCollectionShardKey``, ``renameCollection`` and ``reshardCollection`` through our routers.

On a genuine cluster and on ours.
"""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from pymongo import IndexModel
from pymongo.database import Database
from pymongo.errors import OperationFailure

from shardwright.wire.error_codes import ErrorCode
from tests.genuine_cluster import SHARDS, GenuineCluster
from tests.integration.sharded import LOWER, UPPER
from tests.local_cluster import Client, RunningCluster

DB = "interop_reshaping"
REFINED = {"a": 1, "b": "hashed"}

OF_ONE_INCARNATION = frozenset({"lastmodEpoch", "lastmod", "timestamp", "uuid"})


class Cluster:
    """One of the two clusters, with a sharded collection ``c`` on both shards and another one ``e``."""

    def __init__(self, client: Client, shards: tuple[str, ...]) -> None:
        self.client, self.admin, self.shards = client, client.admin, shards
        self.admin.command("enableSharding", DB, primaryShard=shards[0])
        for name in "ce":
            self.admin.command("shardCollection", f"{DB}.{name}", key={"a": 1})
        self.admin.command("split", f"{DB}.c", middle={"a": 0})
        self.admin.command("moveChunk", f"{DB}.c", find={"a": 5}, to=shards[1])
        client[DB].c.insert_many({"_id": number, "a": number, "b": number} for number in range(-5, 5))

    def answer(self, command: str, namespace: str, **arguments: Any) -> object:  # noqa: ANN401 - of any type
        """``ok``, or the code and the message of the error."""
        try:
            self.admin.command(command, f"{DB}.{namespace}", **arguments)
        except OperationFailure as failure:
            details = failure.details or {}
            return failure.code, details.get("codeName"), details.get("errmsg")
        return "ok"

    def modified(self, collection: str, **index: object) -> object:
        """Return each shard's reply to a change of an index; or the error, without the command to a participant."""
        try:
            reply = self.client[DB].command("collMod", collection, index=index)
        except OperationFailure as failure:
            details = failure.details or {}
            return failure.code, details["errmsg"].rpartition(" :: caused by :: ")[2]
        top = {field: value for field, value in reply.items() if field not in ("raw", "$clusterTime", "operationTime")}
        return top, [dict(sorted(answer.items())) for answer in reply["raw"].values()]

    def code(self, db: str, command: dict[str, Any]) -> int | None:
        """The code of the error; None if there is none."""
        try:
            self.client[db].command(command)
        except OperationFailure as failure:
            return failure.code
        return None

    def catalog(self, name: str) -> object:
        """The collection's entry and chunks, without what differs between any two collections."""
        entry = self.client.config["collections"].find_one({"_id": f"{DB}.{name}"})
        if entry is None:
            return None
        chunks = self.client.config.chunks.find({"uuid": entry["uuid"]}).sort("min", 1)
        bounds = [(each["min"], each["max"], self.shards.index(each["shard"]), "jumbo" in each) for each in chunks]
        return {field: value for field, value in entry.items() if field not in OF_ONE_INCARNATION}, bounds

    def story(self, kind: str, about: str) -> object:
        """Return the changelog's entries about changes of one kind, for matching names."""
        query = {"what": {"$regex": f"^{kind}"}, "ns": {"$regex": about}}
        entries = self.client.config.changelog.find(query).sort("time", 1)
        return [(entry["what"], entry["ns"], sorted(entry["details"])) for entry in entries]

    def outcome(self, index: object, collection: str) -> object:
        """The reply to ``dropIndexes`` with the answers of the shards, by their numbers."""
        try:
            reply = self.client[DB].command("dropIndexes", collection, index=index)
        except OperationFailure as failure:
            reply = dict(failure.details or {})
        raw = {self.shards.index(host.partition("/")[0]): answer for host, answer in reply.pop("raw", {}).items()}
        return raw, {name: value for name, value in reply.items() if name in ("ok", "code", "codeName", "errmsg")}


@pytest.fixture(scope="module")
def clusters(client: Client, cluster: RunningCluster) -> Iterator[tuple[Cluster, Cluster]]:
    """The genuine cluster and ours."""
    with cluster.direct("router.0") as own:
        yield Cluster(client, SHARDS), Cluster(own, (LOWER, UPPER))
        for each in (client, own):
            each.drop_database(DB)


def test_both_reshape_alike(clusters: tuple[Cluster, Cluster]) -> None:
    genuine, own = clusters

    def same(command: str, namespace: str, **arguments: Any) -> object:  # noqa: ANN401 - of any type
        answer = genuine.answer(command, namespace, **arguments)
        assert own.answer(command, namespace, **arguments) == answer
        return answer

    for key in (REFINED, {"a": 1, "b": -1}, {}, {"b": 1}, {"b": 1, "a": 1}):
        assert same("refineCollectionShardKey", "c", key=key) != "ok"
    assert same("refineCollectionShardKey", "unsharded", key=REFINED) != "ok"
    for each in clusters:
        each.client[DB].c.create_index([("a", 1), ("b", "hashed")])
    for _ in range(2):
        assert same("refineCollectionShardKey", "c", key=REFINED) == "ok"
    assert own.catalog("c") == genuine.catalog("c")
    assert own.story("refine", f"{DB}.c") == genuine.story("refine", f"{DB}.c")

    assert same("renameCollection", "c", to=f"{DB}.e") != "ok"
    assert same("renameCollection", "c", to=f"{DB}_other.e", dropTarget=True) != "ok"
    assert same("renameCollection", "missing", to=f"{DB}.e", dropTarget=True) != "ok"
    assert same("renameCollection", "c", to=f"{DB}.d") == "ok"
    assert own.catalog("d") == genuine.catalog("d")
    assert same("renameCollection", "d", to=f"{DB}.e", dropTarget=True) == "ok"
    for name in "cde":
        assert own.catalog(name) == genuine.catalog(name), name
        found = [sorted(each["_id"] for each in cluster.client[DB][name].find()) for cluster in clusters]
        assert found[0] == found[1]


def test_unsharded_collections_are_renamed_alike(clusters: tuple[Cluster, Cluster]) -> None:
    for each in clusters:
        for name in ("plain", "other", "zoned"):
            each.client[DB][name].insert_one({})
        each.admin.command("addShardToZone", each.shards[0], zone="z")
        for name in ("plain", "zoned"):
            each.admin.command("updateZoneKeyRange", f"{DB}.{name}", min={"x": 1}, max={"x": 2}, zone="z")
    for source, target in (("plain", "other"), ("other", "zoned"), ("zoned", "new")):
        answers = [each.answer("renameCollection", source, to=f"{DB}.{target}", dropTarget=True) for each in clusters]
        assert answers[0] == answers[1], (source, target)
    zones = [sorted(tag["ns"] for tag in each.client.config.tags.find({"tag": "z"})) for each in clusters]
    assert zones[0] == zones[1] == [f"{DB}.plain", f"{DB}.zoned"]
    genuine, own = (each.story("renameCollection", rf"{DB}\.(plain|other|zoned|new)") for each in clusters)
    assert own == genuine


INTERNAL = ("admin.new", "admin.system.version", "config.chunks", "config.new", "config.transactions", "local.new")


def test_nothing_is_renamed_into_the_servers_own_databases(clusters: tuple[Cluster, Cluster]) -> None:
    for each in clusters:
        each.client[DB].mine.insert_one({"_id": "mine"})
    for target in INTERNAL:
        genuine, own = (each.answer("renameCollection", "mine", to=target, dropTarget=True) for each in clusters)
        assert own == genuine != "ok", target
    for each in clusters:
        assert list(each.client[DB].mine.find()) == [{"_id": "mine"}]
        with each.client.start_session() as session:
            each.client[DB].mine.insert_one({"_id": "retryable"}, session=session)


@pytest.mark.parametrize("source", INTERNAL)
def test_nothing_is_renamed_out_of_the_servers_own_databases(clusters: tuple[Cluster, Cluster], source: str) -> None:
    answers = []
    for each in clusters:
        with pytest.raises(OperationFailure) as failure:
            each.admin.command("renameCollection", source, to=f"{DB}.taken")
        answers.append((failure.value.code, (failure.value.details or {})["errmsg"]))
    assert answers[0] == answers[1]


def test_both_drop_indexes_alike(clusters: tuple[Cluster, Cluster]) -> None:
    for each in clusters:
        each.admin.command("shardCollection", f"{DB}.indexed", key={"a": 1})
        each.admin.command("split", f"{DB}.indexed", middle={"a": 0})
        each.admin.command("moveChunk", f"{DB}.indexed", find={"a": 5}, to=each.shards[1])
        each.client[DB].unsharded.create_index("x")
        each.client[DB].indexed.create_index("x")
    wanted = ("no", "_id_", "a_1", {"no": 1}, ["x_1", "no"], 7, "*", "x_1", "*")
    for name in ("indexed", "unsharded", "missing"):
        for index in wanted:
            genuine, own = (each.outcome(index, name) for each in clusters)
            assert own == genuine, (name, index)


def test_indexes_become_unique_alike(clusters: tuple[Cluster, Cluster]) -> None:
    for each in clusters:
        for name in ("unique", "prepared"):
            each.client[DB][name].create_indexes([IndexModel("b"), IndexModel([("a", 1), ("b", 1)])])
        each.admin.command("shardCollection", f"{DB}.unique", key={"a": 1})
        each.admin.command("split", f"{DB}.unique", middle={"a": 0})
        each.admin.command("moveChunk", f"{DB}.unique", find={"a": 5}, to=each.shards[1])
        each.client[DB].unique.insert_many([{"a": 1, "b": 1}, {"a": -1, "b": 1}])

    genuine, own = (each.modified("prepared", name="b_1", prepareUnique=True) for each in clusters)
    assert own == genuine

    def same(name: str, **change: object) -> None:
        answers, indexes = [], []
        for each in clusters:
            answers.append(each.modified("unique", name=name, **change))
            listed = each.client[DB].unique.list_indexes()
            indexes.append({index["name"]: (index.get("unique"), index.get("prepareUnique")) for index in listed})
        assert answers[0] == answers[1], (name, change)
        assert indexes[0] == indexes[1], (name, change)

    for name in ("b_1", "a_1_b_1"):
        same(name, unique=True)
        same(name, prepareUnique=True)
        same(name, unique=True)
        same(name, prepareUnique=False)
    for index in ({"key": {"z": 1}, "name": "z"}, {"key": {"a": 1, "z": 1}, "name": "a_z"}):
        wanted = {"createIndexes": "unique", "indexes": [{**index, "prepareUnique": True}]}
        genuine, own = (each.code(DB, wanted) for each in clusters)
        assert own == genuine, index
    answers = [each.answer("shardCollection", "prepared", key={"a": 1}) for each in clusters]
    assert answers[0] == answers[1] != "ok"


@pytest.mark.exhaustive
def test_genuine_shards_may_not_reshard_while_unique_values_are_passed_on(
    genuine: GenuineCluster, client: Client, database: Database[dict[str, object]]
) -> None:
    """They apply changes of different documents at once, and the index is unique then, too. Ours may fail as well."""
    collection = database["unique"]
    client.admin.command("shardCollection", collection.full_name, key={"a": 1})
    collection.create_index([("a", 1), ("b", 1), ("value", 1)], unique=True)
    owners = {0: "first", 1: "second"}
    collection.insert_many(
        {"_id": f"{owner}_{a}", "a": a, "b": 1, "value": value} for a in range(100) for value, owner in owners.items()
    )
    for address in (genuine.config, *genuine.shards.values()):
        with genuine.direct(address) as server:
            server.admin.command("setParameter", 1, reshardingMinimumOperationDurationMillis=0)
    is_over = threading.Event()

    def pass_on() -> None:
        steps = [("first", 2), ("second", 0), ("first", 1), ("second", 3), ("first", 0), ("second", 1)]
        while not is_over.is_set():
            for a in range(100):
                for owner, value in steps:
                    query = {"_id": f"{owner}_{a}", "a": a, "b": 1}
                    collection.update_one(query, {"$set": {"value": value}})

    with ThreadPoolExecutor() as threads:
        passing = threads.submit(pass_on)
        try:
            with pytest.raises(OperationFailure, match="reached an unrecoverable error") as failure:
                client.admin.command("reshardCollection", collection.full_name, key={"a": 1, "b": 1})
        finally:
            is_over.set()
        passing.result()
    assert failure.value.code == ErrorCode.DuplicateKey
