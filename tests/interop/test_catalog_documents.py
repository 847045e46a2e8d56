"""After the same changes, the catalogs of a genuine config server and of ours contain the same documents."""

from collections.abc import Iterator
from typing import Any, Final

import pytest

from tests.interop.comparison import assert_same
from tests.interop.deployment import HIGH, LOW, MAJORITY, UNSHARDED, Deployment, Document

Both = tuple[Deployment, Deployment]

DB: Final = "interop_catalog"

IN_ANY_ORDER: Final = frozenset({"moveChunk.from", "moveChunk.to"})
"""Written by two shards at the same time; `tests.interop.test_migration_documents` compares them."""


@pytest.fixture(scope="module", autouse=True)
def database(both: Both) -> Iterator[None]:
    """The database of these tests, dropped on both clusters afterwards."""
    yield
    for deployment in both:
        drop = {"_shardsvrDropDatabase": 1, "databaseVersion": deployment.create_database(DB)}
        assert deployment.on_shard(0, {**drop, "writeConcern": MAJORITY}, db=DB)["ok"]


def _story(deployment: Deployment, namespace: str) -> list[Document]:
    """The changelog's entries for a namespace, without fields that differ for good reason."""
    changes = [change for change in deployment.changes(namespace) if change["what"] not in IN_ANY_ORDER]
    for change in changes:
        # The port from which a shard's request came.
        # Genuine shards come over TCP, our daemons over a UNIX socket, which MongoDB too calls by this name.
        address = change["clientAddr"].rpartition(":")[0] or change["clientAddr"]
        change["clientAddr"] = "local" if address in ("127.0.0.1", "anonymous unix socket") else address
        # How many documents were moved.
        change["details"].pop("counts", None)
        # The incarnation of a database that is dropped.
        change["details"].pop("databaseVersion", None)
        # From which our routers make `shardCollection` events.
        for name in ("request", "markedAfter", "markedUntil"):
            change["details"].pop(name, None)
        # A genuine server writes the entries of one commit at once, with the same time.
        change["_id"] = change["_id"].rpartition("-")[2]
    return changes


@pytest.mark.parametrize(
    ("name", "key", "options"),
    [
        ("ranged", {"key": 1}, {}),
        ("compound", {"a": 1, "b": 1}, {}),
        ("dotted", {"a.b": 1}, {}),
        ("unique", {"a": 1}, {"unique": True}),
        ("hashed", {"_id": "hashed"}, {}),
        ("hashed_8", {"x": "hashed"}, {"numInitialChunks": 8}),
        ("hashed_7", {"x": "hashed"}, {"numInitialChunks": 7}),
        ("hashed_first", {"a": "hashed", "b": 1}, {}),
        ("hashed_last", {"a": 1, "b": "hashed"}, {}),
        ("simple", {"a": 1}, {"collation": {"locale": "simple"}}),
    ],
)
def test_shard_collection(both: Both, name: str, key: Document, options: Document) -> None:
    def ask(deployment: Deployment) -> list[Any]:
        namespace = f"{DB}.{name}"
        reply = deployment.shard_collection(namespace, key, **options)
        indexes = list(deployment.shards[0][DB][name].list_indexes())
        return [
            reply,
            deployment.entry(namespace),
            deployment.chunks(namespace),
            _story(deployment, namespace),
            indexes,
            [info["info"]["uuid"] for info in deployment.shards[0][DB].list_collections(filter={"name": name})],
        ]

    assert_same(both, ask)


@pytest.mark.parametrize(
    ("key", "options"),
    [
        ({"a": 1}, {"numInitialChunks": 4}),
        ({"a": 2}, {}),
        ({"a": "hashed"}, {"unique": True}),
        ({"a": "hashed", "b": "hashed"}, {}),
        ({}, {}),
        ({"a": 1}, {"collation": {"locale": "fr"}}),
        ({"a": "text"}, {}),
    ],
)
def test_shard_collection_refused(both: Both, key: Document, options: Document) -> None:
    def ask(deployment: Deployment) -> list[Any]:
        reply = deployment.shard_collection(f"{DB}.refused", key, **options)
        return [reply["ok"], reply["code"], reply["codeName"]]

    assert assert_same(both, ask)[0] == 0


def test_shard_collection_again(both: Both) -> None:
    # A genuine shard also logs attempts that change nothing; ours logs changes.
    def ask(deployment: Deployment) -> list[Any]:
        namespace = f"{DB}.again"
        replies = [deployment.shard_collection(namespace, key) for key in ({"key": 1}, {"key": 1}, {"other": 1})]
        return [replies, deployment.entry(namespace), deployment.chunks(namespace)]

    assert_same(both, ask)


def test_split_merge_and_move(both: Both) -> None:
    namespace = f"{DB}.changed"

    def ask(deployment: Deployment) -> list[Any]:
        deployment.shard_collection(namespace, {"key": 1})
        seen: list[Any] = []

        def look(*replies: Document) -> None:
            seen.extend([*replies, deployment.chunks(namespace)])

        look(deployment.split(namespace, {"key": LOW}, {"key": HIGH}, {"key": 10}))
        look(deployment.split(namespace, {"key": LOW}, {"key": HIGH}, {"key": 10}))
        look(deployment.split(namespace, {"key": 10}, {"key": HIGH}, {"key": 20}, {"key": 30}, {"key": 40}))
        look(deployment.merge(namespace, {"key": 20}, {"key": 40}))
        look(deployment.merge(namespace, {"key": 20}, {"key": 40}))
        look(deployment.move(namespace, 1, min={"key": 40}))  # A whole chunk,
        look(deployment.move(namespace, 1, min={"key": 40}))
        look(deployment.move(namespace, 1, min={"key": 22}, max={"key": 25}))  # the middle of one,
        # Not with only an end: a genuine config server 6.0.5 crashes on a request without min.
        look(deployment.move(namespace, 1, min={"key": LOW}, max={"key": 10}))  # the first,
        look(deployment.move(namespace, 1, min={"key": 30}))  # the end of one.
        look(deployment.merge(namespace, {"key": 30}, {"key": HIGH}, shard=1))
        return [*seen, deployment.entry(namespace), _story(deployment, namespace)]

    assert_same(both, ask)


def test_drop(both: Both) -> None:
    namespace = f"{DB}.dropped"

    def ask(deployment: Deployment) -> list[Any]:
        deployment.shard_collection(namespace, {"key": "hashed"})
        version = deployment.create_database(DB)
        drop = {"_shardsvrDropCollection": "dropped", "databaseVersion": version, "writeConcern": MAJORITY}
        replies = [deployment.on_shard(0, drop, db=DB) for _ in range(2)]
        return [
            replies,
            list(deployment.config.config.collections.find({"_id": namespace})),
            [shard[DB].list_collection_names(filter={"name": "dropped"}) for shard in deployment.shards],
            deployment.on_shard(0, {"find": "dropped", "shardVersion": UNSHARDED, "databaseVersion": version}, db=DB),
        ]

    assert_same(both, ask)


def test_drop_database(both: Both) -> None:
    db = "interop_dropped"

    def ask(deployment: Deployment) -> list[Any]:
        deployment.shard_collection(f"{db}.ranged", {"key": 1})
        drop = {"_shardsvrDropDatabase": 1, "databaseVersion": deployment.create_database(db)}
        reply = deployment.on_shard(0, {**drop, "writeConcern": MAJORITY}, db=db)
        # Ours returns the database's name, as a mongod does; a genuine shard does not, and a router passes that on.
        reply.pop("dropped", None)
        return [
            reply,
            list(deployment.config.config.databases.find({"_id": db})),
            list(deployment.config.config.collections.find({"_id": f"{db}.ranged"})),
            # Ours also records the creation of a database, and the version of one that is dropped.
            [
                (each["what"], {name: value for name, value in each["details"].items() if name != "databaseVersion"})
                for each in deployment.changes(db)
                if each["what"] != "createDatabase"
            ],
            deployment.on_shard(0, {"getDatabaseVersion": db}),
        ]

    assert_same(both, ask)


@pytest.mark.parametrize(
    "name", ["shards", "databases", "collections", "chunks", "tags", "version", "changelog", "mongos", "locks"]
)
def test_indexes_of_the_catalog(both: Both, name: str) -> None:
    assert_same(both, lambda deployment: list(deployment.config.config[name].list_indexes()))


def test_entries_of_the_cluster(both: Both) -> None:
    def ask(deployment: Deployment) -> list[Any]:
        config = deployment.config.config
        # A shard that has been in a zone keeps an empty list of zones.
        return [list(config.shards.find({}, {"tags": 0}).sort("_id")), list(config.version.find())]

    assert_same(both, ask)


# Both refuse each of these. The codes differ where a genuine server detects the error elsewhere; a router retries on
# none of them.
REFUSALS: Final[dict[str, tuple[Document, int | None, int | None]]] = {
    "split of a collection that is not sharded": ({"splitChunk": f"{DB}.unsharded"}, 13388, 117),
    "split of a chunk that is not there": ({"min": {"key": 1}}, 105, 2),
    "split at a key outside": ({"splitKeys": [{"key": "x"}], "max": {"key": 5}}, 72, 2),
    "split at a bound": ({"splitKeys": [{"key": LOW}]}, 72, 72),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_split_refused(both: Both, name: str) -> None:
    change, *codes = REFUSALS[name]
    found = []
    for deployment in both:
        namespace = f"{DB}.split_refused"
        deployment.shard_collection(namespace, {"key": 1})
        entry = deployment.entry(namespace)
        command = {
            "splitChunk": namespace,
            "from": deployment.shard_ids[0],
            "keyPattern": {"key": 1},
            "epoch": entry["lastmodEpoch"],
            "timestamp": entry["timestamp"],
            "min": {"key": LOW},
            "max": {"key": HIGH},
            "splitKeys": [{"key": 3}],
            **change,
        }
        found.append(deployment.on_shard(0, command).get("code"))
    assert found == codes
