"""Moving chunks with documents, and monitoring the moves, as administrators do."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from bson.max_key import MaxKey
from pymongo.database import Database
from pymongo.errors import OperationFailure

from shardwright.mongosh_compat.runner import run_code
from tests.fail_points import fail_point
from tests.integration.raw_client import raw_client
from tests.integration.sharded import LOWER, UPPER, Document, Documents, changes, chunks, placement, shard_collection
from tests.local_cluster import Client, RunningCluster, shardwright
from tests.migration.moving import RunningMove, moving

DOCUMENTS = 300
CONFLICT, CHUNK_TOO_BIG, INTERRUPTED = 117, 153, 11601


@pytest.fixture
def filled(database: Database[Document]) -> Documents:
    """A collection with one chunk on the lower shard, with documents."""
    shard_collection(database, "filled", {"key": 1})
    database.filled.insert_many({"_id": n, "key": n} for n in range(DOCUMENTS))
    return database.filled


@pytest.fixture
def small_chunks(client: Client) -> Iterator[int]:
    """The default maximum size of chunks, in bytes."""
    client.config.settings.update_one({"_id": "chunksize"}, {"$set": {"value": 1}}, upsert=True)
    yield 1 << 20
    client.config.settings.delete_one({"_id": "chunksize"})


@contextmanager
def standing_still(cluster: RunningCluster, collection: Documents) -> Iterator[RunningMove]:
    """A move of the upper half that is suspended after the start of its clone until the block ends."""
    upper_half = {"min": {"key": DOCUMENTS // 2}, "max": {"key": MaxKey()}, "toShard": UPPER}
    with (
        cluster.direct("shard0.0.shardd") as donor,
        fail_point(donor, "moveChunkHangAtStep3") as point,
        moving(cluster.address("router.0"), {"moveRange": collection.full_name, **upper_half}) as move,
    ):
        point.wait_entered()
        yield move
        point.turn_off()
        move.wait()


def keys_at(mongod: Client, collection: Documents) -> list[int]:
    """The keys on a mongod."""
    found = mongod[collection.database.name][collection.name].find(sort=[("key", 1)])
    return [document["key"] for document in found]


def test_documents_move(client: Client, filled: Documents, lower_mongod: Client, upper_mongod: Client) -> None:
    client.admin.command("split", filled.full_name, middle={"key": 100})
    client.admin.command("moveChunk", filled.full_name, find={"key": 200}, to=UPPER, waitForDelete=True)
    assert placement(client, filled.full_name) == [LOWER, UPPER]
    assert keys_at(lower_mongod, filled) == list(range(100))
    assert keys_at(upper_mongod, filled) == list(range(100, DOCUMENTS))
    assert filled.count_documents({}) == DOCUMENTS
    [commit] = changes(client, filled.full_name, "moveChunk.commit")
    assert commit["details"]["counts"]["cloned"] == DOCUMENTS - 100
    # And back.
    client.admin.command("moveChunk", filled.full_name, find={"key": 200}, to=LOWER, _waitForDelete=True)
    assert keys_at(upper_mongod, filled) == []
    assert keys_at(lower_mongod, filled) == list(range(DOCUMENTS))


@pytest.mark.usefixtures("small_chunks")
def test_a_range_with_one_bound_is_limited_to_the_chunk_size(client: Client, database: Database[Document]) -> None:
    shard_collection(database, "big", {"key": 1})
    collection = database.big
    client.admin.command("configureCollectionBalancing", collection.full_name, enableAutoSplitter=False)
    collection.insert_many({"_id": n, "key": n, "text": "x" * 1000} for n in range(6000))
    client.admin.command("moveRange", collection.full_name, max={"key": 5500}, toShard=UPPER)
    client.admin.command("moveRange", collection.full_name, min={"key": 100}, toShard=UPPER)
    moved = [chunk for chunk in chunks(client, collection.full_name) if chunk["shard"] == UPPER]
    (first, second) = sorted(moved, key=lambda chunk: int(chunk["min"]["key"]))
    assert first["min"] == {"key": 100}
    assert second["max"] == {"key": 5500}
    for chunk in moved:
        assert 400 <= chunk["max"]["key"] - chunk["min"]["key"] <= 1300
    large: Document = {"moveRange": collection.full_name, "min": first["max"], "max": {"key": 4000}, "toShard": UPPER}
    with pytest.raises(OperationFailure, match="maximum number of documents") as failure:
        client.admin.command(large)
    assert failure.value.code == CHUNK_TOO_BIG
    client.admin.command({**large, "forceJumbo": True})
    assert collection.count_documents({}) == 6000


def test_a_chunk_is_split_while_the_lower_bound_is_chosen(
    cluster: RunningCluster, client: Client, filled: Documents, lower_mongod: Client
) -> None:
    move_range = {"moveRange": filled.full_name, "max": {"key": 200}, "toShard": UPPER, "$db": "admin"}
    held: Document = {"failCommands": ["splitVector"], "blockConnection": True, "blockTimeMS": 2_000}
    with (
        fail_point(lower_mongod, "failCommand", {"times": 1}, **held) as point,
        moving(cluster.address("router.0"), move_range) as move,
    ):
        point.wait_entered()
        client.admin.command("split", filled.full_name, middle={"key": 100})
        assert not move.is_over
        reply = move.wait()
    assert reply is not None
    assert reply["ok"] == 1, reply
    [moved] = [chunk for chunk in chunks(client, filled.full_name) if chunk["shard"] == UPPER]
    assert (moved["min"], moved["max"]) == ({"key": 100}, {"key": 200})


def test_migrations_are_forbidden_and_allowed(cluster: RunningCluster, client: Client, filled: Documents) -> None:
    namespace = filled.full_name
    run_code(cluster.client_uri(), f'sh.disableMigrations("{namespace}")').check()
    with pytest.raises(OperationFailure, match="undergoing changes") as failure:
        client.admin.command("moveChunk", namespace, find={"key": 1}, to=UPPER)
    assert failure.value.code == CONFLICT
    run_code(cluster.client_uri(), f'sh.enableMigrations("{namespace}")').check()
    client.admin.command("moveChunk", namespace, find={"key": 1}, to=UPPER)
    assert placement(client, namespace) == [UPPER]


def test_forbidding_migrations_aborts_the_active_one(
    cluster: RunningCluster, client: Client, filled: Documents
) -> None:
    with standing_still(cluster, filled) as held:
        client.admin.command("setAllowMigrations", filled.full_name, allowMigrations=False)
        with cluster.direct(f"{LOWER}.0.mongod") as donor:
            assert list(donor.config.migrationCoordinators.find()) == []  # it has been waited for
        reply = held.wait()
    assert reply is not None
    assert reply["code"] == CONFLICT
    assert placement(client, filled.full_name) == [LOWER]
    client.admin.command("setAllowMigrations", filled.full_name, allowMigrations=True)
    client.admin.command("moveChunk", filled.full_name, find={"key": 1}, to=UPPER)
    assert filled.count_documents({}) == DOCUMENTS


def test_migrations_of_unsharded_collections(client: Client, database: Database[Document]) -> None:
    database.plain.insert_one({})
    for action in ("setAllowMigrations", "moveChunk"):
        arguments: Document = {"allowMigrations": False, "find": {"_id": 1}, "to": UPPER}
        with pytest.raises(OperationFailure) as failure:
            client.admin.command({action: f"{database.name}.plain", **arguments})
        assert failure.value.code == 118


def test_a_migration_is_shown_and_can_be_killed(cluster: RunningCluster, client: Client, filled: Documents) -> None:
    with standing_still(cluster, filled) as held:
        operations = client.admin.command("currentOp", desc="MoveChunk")["inprog"]
        [operation] = [each for each in operations if each["ns"] == filled.full_name]
        assert operation["shard"] == LOWER
        assert operation["command"]["toShard"] == UPPER
        assert operation["progress"]["total"] == DOCUMENTS // 2
        described = [each for each in cluster.status()["migrations"] if each["ns"] == filled.full_name]
        assert (described[0]["process"], described[0]["from"], described[0]["to"]) == ("shard0.0.shardd", LOWER, UPPER)
        assert described[0]["max"] == {"key": {"$maxKey": 1}}
        table = shardwright("status", "--dir", str(cluster.directory)).stdout
        pattern = rf"shard0\.0\.shardd: {filled.full_name} \[150, MaxKey\) shard0 -> shard1: .* of 150 documents"
        assert re.search(pattern, table)
        client.admin.command("killOp", op=operation["opid"])
        reply = held.wait()
    assert reply is not None
    assert reply["code"] == INTERRUPTED
    assert cluster.status()["migrations"] == []
    assert placement(client, filled.full_name) == [LOWER]
    assert filled.count_documents({}) == DOCUMENTS


def test_the_same_move_is_joined_and_another_refused(
    cluster: RunningCluster, client: Client, filled: Documents
) -> None:
    move = {"moveRange": filled.full_name, "min": {"key": DOCUMENTS // 2}, "max": {"key": MaxKey()}, "toShard": UPPER}
    with raw_client(cluster.address("router.1")) as second:
        with standing_still(cluster, filled) as first:
            second.send_command(move)
            with pytest.raises(OperationFailure) as failure:
                client.admin.command({**move, "min": {"key": 1}, "max": {"key": 2}})
            assert failure.value.code == CONFLICT
            # A client that gives up does not cancel the move for the others.
            with pytest.raises(OperationFailure) as failure:
                client.admin.command({**move, "maxTimeMS": 300})
            assert failure.value.code == 50
            assert not first.is_over
        assert first.reply is not None
        assert first.reply["ok"] == second.receive_reply()["ok"] == 1.0
    assert len(changes(client, filled.full_name, "moveChunk.commit")) == 1
