"""Ranges that were given away are deleted later, and nothing else is: on real mongods, with real migrations."""

from collections.abc import Iterator, Mapping
from typing import Any
from urllib.request import urlopen
from uuid import uuid4

import pytest
from bson import Int64, MaxKey, MinKey
from bson.binary import Binary, UuidRepresentation
from bson.codec_options import CodecOptions
from bson.timestamp import Timestamp

from shardwright.daemon.users import RESERVED_SESSION_IDS
from tests.fail_points import fail_point
from tests.integration.waiting import eventually
from tests.shardd.mini_cluster import Client, MiniCluster, mini_cluster
from tests.shardd.router_stand_in import ShardedNamespace


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MiniCluster]:
    """A cluster whose daemons may be killed."""
    with mini_cluster(tmp_path_factory.mktemp("deletions")) as running:
        yield running


@pytest.fixture
def mongod(cluster: MiniCluster) -> Iterator[Client]:
    """The mongod of ``sh0``; deletions begin at once, and have ended afterwards."""
    with cluster.shards["sh0"].members[0].mongod_client() as client:
        client.admin.command("setParameter", 1, orphanCleanupDelaySecs=0, rangeDeleterBatchDelayMS=0)
        yield client
        client.admin.command("setParameter", 1, rangeDeleterBatchSize=2147483647)
        eventually(lambda: not deletions(client))


@pytest.fixture
def sharded(cluster: MiniCluster, request: pytest.FixtureRequest) -> ShardedNamespace:
    """A collection on ``sh0`` with documents from -10 to 30 by ``a``, split at 0 and 20."""
    name = request.node.name.removeprefix("test_")[:40]
    found = ShardedNamespace(cluster, f"{name}.c", {"a": 1}, "sh0")
    found.split([{"a": 0}, {"a": 20}])
    found.insert(*({"_id": number, "a": number} for number in range(-10, 30)))
    return found


def move(sharded: ShardedNamespace) -> None:
    """Give away the 20 documents between 0 and 20."""
    sharded.move({"a": 0}, {"a": 20}, "sh1")


def daemon(cluster: MiniCluster) -> Client:
    """A client of the daemon of ``sh0``."""
    return cluster.kept_client(cluster.shards["sh0"].members[0])


def restart(cluster: MiniCluster) -> None:
    """Kill the daemon of ``sh0`` and restart it."""
    member = cluster.shards["sh0"].members[0]
    member.restart(member.daemon)


def deletions(mongod: Client) -> list[dict[str, Any]]:
    """The unfinished range deletions."""
    options: CodecOptions[dict[str, Any]] = CodecOptions(uuid_representation=UuidRepresentation.STANDARD)
    return list(mongod.config.get_collection("rangeDeletions", codec_options=options).find())


def stored(mongod: Client, sharded: ShardedNamespace) -> list[int]:
    """The documents on the mongod of ``sh0``."""
    return sorted(each["_id"] for each in mongod[sharded.db][sharded.collection].find())


KEPT = [*range(-10, 0), *range(20, 30)]


def test_a_range_that_was_given_away_is_deleted(mongod: Client, sharded: ShardedNamespace) -> None:
    move(sharded)
    eventually(lambda: not deletions(mongod))
    assert stored(mongod, sharded) == KEPT
    assert [each["_id"] for each in sharded.documents("sh1")] == list(range(20))


def test_an_empty_range_waits_for_nothing(mongod: Client, sharded: ShardedNamespace) -> None:
    """Otherwise reads would pay for a filter that hides nothing until the delay is over."""
    mongod.admin.command("setParameter", 1, orphanCleanupDelaySecs=900)
    sharded.move({"a": 100}, {"a": MaxKey()}, "sh1")
    eventually(lambda: not deletions(mongod))


def test_a_persisted_range_deletion_has_the_genuine_form(
    cluster: MiniCluster, mongod: Client, sharded: ShardedNamespace
) -> None:
    with fail_point(daemon(cluster), "suspendRangeDeletion"):
        move(sharded)
        (document,) = deletions(mongod)
    identity, timestamp = document.pop("_id"), document.pop("timestamp")
    assert isinstance(timestamp, Timestamp)
    assert identity.version == 4
    assert document == {
        "nss": sharded.namespace,
        "collectionUuid": sharded.entry()["uuid"].as_uuid(),
        "donorShardId": "sh0",
        "range": {"min": {"a": 0}, "max": {"a": 20}},
        "whenToClean": "delayed",
        "numOrphanDocs": 20,
    }
    assert isinstance(document["numOrphanDocs"], Int64)
    indexes = mongod.config.rangeDeletions.index_information()
    assert indexes["collectionUuid_1_range.min_1_range.max_1"]["key"] == [
        ("collectionUuid", 1),
        ("range.min", 1),
        ("range.max", 1),
    ]


def test_a_deletion_resumes_after_a_crash(cluster: MiniCluster, mongod: Client, sharded: ShardedNamespace) -> None:
    mongod.admin.command("setParameter", 1, rangeDeleterBatchSize=3)
    with fail_point(daemon(cluster), "hangAfterDoingDeletion") as point:
        move(sharded)
        point.wait_entered()
        assert len(stored(mongod, sharded)) == len(KEPT) + 17
        assert [each["numOrphanDocs"] for each in deletions(mongod)] == [17]
        assert [each["_id"] for each in sharded.documents()] == KEPT
        restart(cluster)
    eventually(lambda: not deletions(mongod))
    assert stored(mongod, sharded) == KEPT


def test_documents_that_older_cursors_and_reads_may_return_are_kept(
    cluster: MiniCluster, mongod: Client, sharded: ShardedNamespace
) -> None:
    reply = sharded.versioned({"find": "c", "sort": {"a": 1}, "batchSize": 15})
    found = reply["cursor"]["firstBatch"]
    move(sharded)
    assert [each["_id"] for each in sharded.documents()] == KEPT
    assert stored(mongod, sharded) == list(range(-10, 30))
    reply = sharded.run({"getMore": Int64(reply["cursor"]["id"]), "collection": "c"})
    found += reply["cursor"]["nextBatch"]
    assert [each["_id"] for each in found] == list(range(-10, 30))
    eventually(lambda: not deletions(mongod))
    assert stored(mongod, sharded) == KEPT


def test_cleanup_orphaned_waits(cluster: MiniCluster, mongod: Client, sharded: ShardedNamespace) -> None:
    cleanup = {"cleanupOrphaned": sharded.namespace}
    with fail_point(daemon(cluster), "hangBeforeDoingDeletion"):
        move(sharded)
        reply = sharded.run({**cleanup, "maxTimeMS": 100}, db="admin")
        assert reply["code"] == 50
    assert sharded.run(cleanup, db="admin") == {"ok": 1.0}
    assert stored(mongod, sharded) == KEPT
    assert sharded.run({**cleanup, "startingFromKey": {"a": MinKey()}}, db="admin") == {"ok": 1.0}
    assert sharded.run({**cleanup, "startingFromKey": {"b": 1}}, db="admin")["code"] == 265
    assert sharded.run({"cleanupOrphaned": "nothing.there"}, db="admin") == {"ok": 1.0}


def test_a_range_that_is_owned_is_not_deleted(cluster: MiniCluster, mongod: Client, sharded: ShardedNamespace) -> None:
    wrong = _deletion(sharded, {"a": 5}, {"a": 8})
    mongod.config.rangeDeletions.insert_one(wrong)
    restart(cluster)
    reply = sharded.run({"cleanupOrphaned": sharded.namespace}, db="admin")
    assert reply["code"] == 20
    assert reply["errmsg"].startswith("refusing to delete the range [{ a: 5 }, { a: 8 })")
    assert stored(mongod, sharded) == list(range(-10, 30))
    assert [each["_id"] for each in sharded.documents()] == list(range(-10, 30))
    mongod.config.rangeDeletions.delete_one({"_id": wrong["_id"]})
    restart(cluster)


def test_a_dropped_collection_needs_no_deletion(
    cluster: MiniCluster, mongod: Client, sharded: ShardedNamespace
) -> None:
    with fail_point(daemon(cluster), "suspendRangeDeletion") as point:
        move(sharded)
        point.wait_entered()
        drop = {"_shardsvrDropCollection": "c", "databaseVersion": sharded.database_version}
        assert sharded.run(drop)["ok"] == 1.0
        again = ShardedNamespace(cluster, sharded.namespace, {"a": 1}, "sh0")
        again.insert(*({"_id": number, "a": number} for number in range(20)))
    eventually(lambda: not deletions(mongod))
    assert stored(mongod, again) == list(range(20))
    assert len(again.documents()) == 20


def test_a_range_being_received_is_hidden_and_kept(
    cluster: MiniCluster, mongod: Client, sharded: ShardedNamespace
) -> None:
    """The documents of an incoming migration are neither shown nor deleted."""
    move(sharded)
    eventually(lambda: not deletions(mongod))
    arriving = _deletion(sharded, {"a": 0}, {"a": 20}) | {"pending": True}
    mongod.config.rangeDeletions.insert_one(arriving)
    mongod[sharded.db][sharded.collection].insert_one({"_id": 3, "a": 3})
    restart(cluster)
    assert [each["_id"] for each in sharded.documents()] == KEPT
    assert sharded.run({"cleanupOrphaned": sharded.namespace}, db="admin") == {"ok": 1.0}
    assert deletions(mongod)
    assert stored(mongod, sharded) == sorted([3, *KEPT])
    mongod.config.rangeDeletions.update_one({"_id": arriving["_id"]}, {"$unset": {"pending": ""}})
    restart(cluster)
    eventually(lambda: not deletions(mongod))
    assert stored(mongod, sharded) == KEPT


def test_change_streams_do_not_show_moves(cluster: MiniCluster, mongod: Client, sharded: ShardedNamespace) -> None:
    with cluster.shard_client("sh0") as client, client[sharded.db][sharded.collection].watch() as stream:
        with mongod[sharded.db][sharded.collection].watch() as unfiltered:
            move(sharded)
            eventually(lambda: not deletions(mongod))
            sharded.insert({"_id": 100, "a": 100})
            assert [next(unfiltered)["operationType"] for _ in range(20)] == ["delete"] * 20
            event = next(unfiltered)
        assert event["operationType"] == "insert"
        seen = next(stream)
        assert (seen["operationType"], seen["documentKey"]["_id"]) == ("insert", 100)


def test_the_deleter_uses_the_reserved_sessions(
    cluster: MiniCluster, mongod: Client, sharded: ShardedNamespace
) -> None:
    with mongod[sharded.db][sharded.collection].watch() as stream:
        move(sharded)
        event = next(stream)
    assert event["operationType"] == "delete"
    assert event["lsid"]["id"].as_uuid() in RESERVED_SESSION_IDS


def test_metrics_show_deletions(cluster: MiniCluster, mongod: Client, sharded: ShardedNamespace) -> None:
    eventually(lambda: _metric(cluster, "range_deletions_pending") == 0, what="earlier deletions are forgotten")
    before = _metric(cluster, "range_deleter_documents_total")
    with fail_point(daemon(cluster), "suspendRangeDeletion"):
        move(sharded)
        assert _metric(cluster, "range_deletions_pending") == 1
        assert _metric(cluster, "orphan_documents") == 20
    eventually(lambda: not deletions(mongod))
    eventually(lambda: _metric(cluster, "range_deletions_pending") == 0)
    assert _metric(cluster, "range_deleter_documents_total") - before == 20


def _metric(cluster: MiniCluster, name: str) -> float:
    port = cluster.shards["sh0"].members[0].metrics_port
    with urlopen(f"http://127.0.0.1:{port}/metrics") as response:
        for line in response.read().decode().splitlines():
            if line.startswith(f"shardwright_shardd_{name} "):
                return float(line.split()[1])
    raise AssertionError(f"no metric {name}")


def _deletion(sharded: ShardedNamespace, low: Mapping[str, Any], high: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "_id": Binary.from_uuid(uuid4()),
        "nss": sharded.namespace,
        "collectionUuid": sharded.entry()["uuid"],
        "donorShardId": "sh1",
        "range": {"min": low, "max": high},
        "whenToClean": "now",
        "numOrphanDocs": Int64(0),
    }
