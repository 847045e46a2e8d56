"""Splitting, merging and moving chunks, and the resulting catalog."""

from collections.abc import Callable
from functools import partial

import pytest
from bson.max_key import MaxKey
from bson.min_key import MinKey
from pymongo.database import Database
from pymongo.errors import OperationFailure

from shardwright.mongosh_compat.runner import run_code
from shardwright.wire.error_codes import ErrorCode
from tests.integration.sharded import (
    LOWER,
    UPPER,
    Document,
    Documents,
    assert_tiled,
    changes,
    chunks,
    lastmods,
    placement,
    shard_collection,
)
from tests.local_cluster import Client, RunningCluster


@pytest.fixture
def whole(database: Database[Document]) -> Documents:
    """A collection with one chunk on the lower shard."""
    shard_collection(database, "whole", {"key": 1})
    return database["whole"]


def code_of(action: Callable[[], object]) -> int | None:
    """The code with which an action fails."""
    with pytest.raises(OperationFailure) as caught:
        action()
    return caught.value.code


def bounds(client: Client, collection: Documents) -> list[object]:
    """The lower bounds of all chunks."""
    return [chunk["min"]["key"] for chunk in chunks(client, collection.full_name)]


def test_split_at_a_point(client: Client, whole: Documents) -> None:
    client.admin.command("split", whole.full_name, middle={"key": 100})
    found = chunks(client, whole.full_name)
    assert [(chunk["min"]["key"], chunk["max"]["key"]) for chunk in found] == [(MinKey(), 100), (100, MaxKey())]
    assert lastmods(client, whole.full_name) == [(1, 1), (1, 2)]
    assert {chunk["shard"] for chunk in found} == {LOWER}
    [change] = changes(client, whole.full_name, "split")
    assert change["details"]["left"]["max"] == change["details"]["right"]["min"] == {"key": 100}


@pytest.mark.parametrize("how", ["find", "bounds"])
def test_split_in_the_middle_of_the_documents(client: Client, whole: Documents, how: str) -> None:
    whole.insert_many({"_id": n, "key": n} for n in range(100))
    where: Document = {"find": {"key": 7}} if how == "find" else {"bounds": [{"key": MinKey()}, {"key": MaxKey()}]}
    client.admin.command("split", whole.full_name, **where)
    found = bounds(client, whole)
    assert len(found) == 2
    assert 25 < found[1] < 75  # type: ignore[operator]
    assert whole.count_documents({}) == 100


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ({"middle": {"key": MinKey()}}, None),
        ({"find": {"key": 1}}, 72),
        ({"bounds": [{"key": 1}, {"key": 2}]}, None),
        ({"middle": {"other": 1}}, None),
        ({}, None),
        ({"middle": {"key": 1}, "find": {"key": 1}}, None),
    ],
    ids=["at a bound", "empty collection", "no such chunk", "wrong key", "nothing", "two ways"],
)
def test_split_refused(client: Client, whole: Documents, arguments: Document, code: int | None) -> None:
    raised = code_of(lambda: client.admin.command("split", whole.full_name, **arguments))
    assert code is None or raised == code
    assert len(chunks(client, whole.full_name)) == 1


def test_split_of_an_unsharded_collection(client: Client, database: Database[Document]) -> None:
    database.plain.insert_one({})
    assert code_of(lambda: client.admin.command("split", f"{database.name}.plain", middle={"key": 1})) == 118


def test_merge(client: Client, whole: Documents) -> None:
    for key in (10, 20, 30):
        client.admin.command("split", whole.full_name, middle={"key": key})
    client.admin.command("mergeChunks", whole.full_name, bounds=[{"key": 10}, {"key": MaxKey()}])
    assert bounds(client, whole) == [MinKey(), 10]
    assert_tiled(chunks(client, whole.full_name))
    [change] = changes(client, whole.full_name, "merge")
    assert change["details"]["numChunks"] == 3
    # Merging a single chunk changes nothing.
    before = lastmods(client, whole.full_name)
    client.admin.command("mergeChunks", whole.full_name, bounds=[{"key": 10}, {"key": MaxKey()}])
    assert lastmods(client, whole.full_name) == before


def test_merge_refused_across_shards(client: Client, placed: Documents) -> None:
    refused = [{"key": MinKey()}, {"key": MaxKey()}]
    assert code_of(lambda: client.admin.command("mergeChunks", placed.full_name, bounds=refused)) is not None
    assert len(chunks(client, placed.full_name)) == 2


def test_move_changes_versions_and_history(client: Client, whole: Documents) -> None:
    client.admin.command("split", whole.full_name, middle={"key": 0})
    reply = client.admin.command("moveChunk", whole.full_name, find={"key": 5}, to=UPPER)
    assert reply["millis"] >= 0
    stayed, moved = chunks(client, whole.full_name)
    assert (stayed["shard"], moved["shard"]) == (LOWER, UPPER)
    assert lastmods(client, whole.full_name) == [(2, 1), (2, 0)]
    assert [entry["shard"] for entry in moved["history"]] == [UPPER, LOWER]
    assert moved["history"][0]["validAfter"] > moved["history"][1]["validAfter"]
    for what in ("moveChunk.start", "moveChunk.commit"):
        [change] = changes(client, whole.full_name, what)
        assert (change["details"]["from"], change["details"]["to"]) == (LOWER, UPPER)


def test_move_to_its_owner_changes_nothing(client: Client, placed: Documents) -> None:
    before = lastmods(client, placed.full_name)
    client.admin.command("moveChunk", placed.full_name, find={"key": 700}, to=UPPER)
    assert lastmods(client, placed.full_name) == before


def test_move_by_bounds(client: Client, placed: Documents) -> None:
    client.admin.command("moveChunk", placed.full_name, bounds=[{"key": 500}, {"key": MaxKey()}], to=LOWER)
    assert placement(client, placed.full_name) == [LOWER, LOWER]


def test_move_range_splits_chunks_as_needed(client: Client, whole: Documents) -> None:
    client.admin.command("moveRange", whole.full_name, min={"key": 10}, max={"key": 20}, toShard=UPPER)
    found = chunks(client, whole.full_name)
    assert [(chunk["min"]["key"], chunk["shard"]) for chunk in found] == [(MinKey(), LOWER), (10, UPPER), (20, LOWER)]
    assert_tiled(found)
    whole.insert_many({"key": key} for key in (5, 15, 25))
    assert sorted(document["key"] for document in whole.find()) == [5, 15, 25]


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ({"find": {"key": 700}, "to": "nowhere"}, 70),
        ({"find": {"key": 700}, "to": LOWER, "secondaryThrottle": "yes"}, 14),
        ({"to": UPPER}, None),
        ({"bounds": [{"key": 3}, {"key": 4}], "to": UPPER}, None),
    ],
)
def test_move_refused(client: Client, placed: Documents, arguments: Document, code: int | None) -> None:
    raised = code_of(lambda: client.admin.command("moveChunk", placed.full_name, **arguments))
    assert code is None or raised == code
    assert placement(client, placed.full_name) == [LOWER, UPPER]


def test_get_shard_version(client: Client, placed: Documents) -> None:
    version = client.admin.command("getShardVersion", placed.full_name, fullMetadata=True)
    assert (version["version"].time, version["version"].inc) == (2, 1)
    assert len(version["chunks"]) == 2


def test_helpers_of_mongosh(cluster: RunningCluster, client: Client, whole: Documents) -> None:
    namespace = whole.full_name
    code = f"""
        sh.splitAt("{namespace}", {{key: 10}});
        sh.splitAt("{namespace}", {{key: 20}});
        sh.moveChunk("{namespace}", {{key: 10}}, "{UPPER}");
        sh.moveRange("{namespace}", "{UPPER}", {{key: 20}}, {{key: MaxKey()}});
        db.adminCommand({{mergeChunks: "{namespace}", bounds: [{{key: 10}}, {{key: MaxKey()}}]}}).ok
    """
    assert run_code(cluster.client_uri(), code).check().strip().endswith("1")
    assert placement(client, namespace) == [LOWER, UPPER]
    assert bounds(client, whole) == [MinKey(), 10]


def test_repaired_histories_begin_now(client: Client, whole: Documents) -> None:
    whole.insert_one({"_id": 1, "key": 1})
    with client.start_session(snapshot=True) as session:
        assert whole.find_one({"key": 1}, session=session)  # Chooses the time of the session.
        whole.insert_one({"_id": 2, "key": 2})  # So that the histories begin later.
        assert client.admin.command("repairShardedCollectionChunksHistory", whole.full_name)["ok"]
        assert code_of(lambda: whole.find_one({"key": 1}, session=session)) == ErrorCode.StaleChunkHistory
    assert whole.find_one({"key": 1})
    with client.start_session(snapshot=True) as session:
        assert whole.find_one({"key": 1}, session=session)
    before = lastmods(client, whole.full_name)
    client.admin.command("repairShardedCollectionChunksHistory", whole.full_name)
    assert lastmods(client, whole.full_name) == before
    client.admin.command("repairShardedCollectionChunksHistory", whole.full_name, force=True)
    assert lastmods(client, whole.full_name) > before
    unknown = f"{whole.full_name}_unknown"
    repair_unknown = partial(client.admin.command, "repairShardedCollectionChunksHistory", unknown)
    assert code_of(repair_unknown) == ErrorCode.NamespaceNotFound
