"""Cluster times: signed for clients by keys of the config servers, checked, and gossiped to all shards."""

from collections.abc import Callable, Iterator
from typing import Final
from uuid import uuid4

import bson
import pytest
from bson.binary import Binary
from bson.int64 import Int64
from bson.timestamp import Timestamp
from pymongo import DeleteOne

from shardwright.sharding.cluster_time import SigningKey
from shardwright.wire.message import op_msg
from tests.fail_points import fail_point
from tests.integration.raw_client import RawClient, raw_client
from tests.integration.sharded import SPLIT_AT, Document, Documents, shard_by_range
from tests.integration.signed_times import is_signed, later, signing_keys, time_in
from tests.integration.waiting import eventually
from tests.local_cluster import Client, RunningCluster
from tests.wire.raw_connection import op_msg_frame

LOW, HIGH = SPLIT_AT - 1, SPLIT_AT


@pytest.fixture(scope="module")
def keys(cluster: RunningCluster) -> dict[int, SigningKey]:
    """The keys on the config servers."""
    with cluster.direct("config.0.mongod") as mongod:
        return signing_keys(mongod)


@pytest.fixture
def raw(cluster: RunningCluster) -> Iterator[RawClient]:
    """A connection to the first router, which by now has the keys."""
    with raw_client(cluster.address("router.0")) as connection:
        eventually(lambda: time_in(connection.command({"ping": 1}))["signature"]["keyId"], what="the router has keys")
        yield connection


def test_there_are_two_keys_one_rotation_apart(keys: dict[int, SigningKey]) -> None:
    first, second = sorted(keys.values(), key=lambda key: key.expires_at)
    assert second.expires_at - first.expires_at == 90 * 24 * 3600 << 32


def test_all_replies_to_clients_are_signed(raw: RawClient, ranged: Documents, keys: dict[int, SigningKey]) -> None:
    ranged.insert_many({"key": SPLIT_AT + n, "text": "x" * 100_000} for n in range(-20, 20))
    db, name = ranged.database.name, ranged.name
    of_one_shard = raw.command({"find": name, "filter": {"key": {"$lt": SPLIT_AT}}, "batchSize": 1}, db=db)
    of_both_shards = raw.command({"find": name, "batchSize": 1}, db=db)
    assert of_one_shard["cursor"]["id"]
    assert of_both_shards["cursor"]["id"]
    replies = [of_one_shard, of_both_shards]
    # Long enough to be relayed while they are received.
    replies += [
        raw.command({"getMore": reply["cursor"]["id"], "collection": name}, db=db)
        for reply in (of_one_shard, of_both_shards)
    ]
    assert len(replies[2]["cursor"]["nextBatch"]) == 19
    replies += [
        raw.command({"hello": 1}),
        raw.command({"find": name, "filter": {"key": HIGH}}, db=db),
        raw.command({"find": name, "filter": {"key": {"$wrong": 1}}}, db=db),
        raw.command({"insert": name, "documents": [{"key": HIGH}]}, db=db),
        raw.command({"update": name, "updates": [{"q": {}, "u": {"$set": {"a": 1}}, "multi": True}]}, db=db),
        raw.command({"noSuchCommand": 1}),
    ]
    assert [is_signed(reply, keys) for reply in replies] == [True] * len(replies)


def test_a_new_router_reads_the_keys_before_it_serves_sessions(
    cluster: RunningCluster, ranged: Documents, keys: dict[int, SigningKey]
) -> None:
    slow: Document = {"namespace": "admin.system.keys", "blockConnection": True, "blockTimeMS": 2000}
    with (
        cluster.direct("config.0.mongod") as mongod,
        fail_point(mongod, "failCommand", failCommands=["find"], failInternalCommands=True, **slow),
    ):
        cluster.kill("router.1")
        cluster.restart("router.1")
        with raw_client(cluster.address("router.1")) as router:
            insert = {"insert": ranged.name, "documents": [{"key": HIGH}], "lsid": {"id": Binary(uuid4().bytes, 4)}}
            assert is_signed(router.command(insert, db=ranged.database.name), keys)


def test_a_time_that_was_not_signed_is_refused(raw: RawClient) -> None:
    before = raw.command({"ping": 1})
    genuine = time_in(before)["signature"]
    for signature, code, name in (
        ({**genuine, "hash": Binary(bytes(20))}, 204, "TimeProofMismatch"),
        ({**genuine, "keyId": Int64(12345)}, 211, "KeyNotFound"),
    ):
        made_up = {"clusterTime": later(before), "signature": signature}
        reply = raw.command({"ping": 1, "$clusterTime": made_up})
        assert (reply["ok"], reply["code"], reply["codeName"]) == (0, code, name)
        assert time_in(reply)["clusterTime"] < later(before)


def test_errors_before_a_command_is_known_tell_the_time(raw: RawClient, keys: dict[int, SigningKey]) -> None:
    ping = bson.encode({"ping": 1, "$db": "admin"})
    two_bodies = op_msg(ping, request_id=1, sections=b"\0" + ping)
    for frame in (two_bodies, op_msg_frame({"ping": 1, "$db": "a.b"}), op_msg_frame({"nonesuch": 1, "$db": "a"})):
        raw.send(frame)
        reply = raw.receive_reply()
        assert reply["ok"] == 0
        assert is_signed(reply, keys)


def test_a_time_without_a_signature_changes_nothing(raw: RawClient, ranged: Documents, lower_mongod: Client) -> None:
    before = raw.command({"ping": 1})
    made_up = {"clusterTime": later(before), "signature": {"hash": Binary(bytes(20)), "keyId": Int64(0)}}
    find = {"find": ranged.name, "filter": {"key": LOW}, "$clusterTime": made_up}
    assert raw.command(find, db=ranged.database.name)["ok"] == 1
    assert time_in(raw.command({"ping": 1}))["clusterTime"] < later(before)
    assert time_in(lower_mongod.admin.command("ping"))["clusterTime"] < later(before)


def test_an_earlier_time_is_not_checked(raw: RawClient) -> None:
    signature = {"hash": Binary(bytes(20)), "keyId": Int64(12345)}
    assert raw.command({"ping": 1, "$clusterTime": {"clusterTime": Timestamp(5, 1), "signature": signature}})["ok"]


def test_shards_learn_the_time_with_every_request(raw: RawClient, ranged: Documents, upper_mongod: Client) -> None:
    db = ranged.database.name
    written = raw.command({"insert": ranged.name, "documents": [{"key": LOW}]}, db=db)["operationTime"]
    assert raw.command({"find": ranged.name, "filter": {"key": HIGH}}, db=db)["ok"]
    assert time_in(upper_mongod.admin.command("ping"))["clusterTime"] >= written


def test_a_session_reads_its_own_writes_through_another_router(
    client: Client, other_client: Client, ranged: Documents, raw: RawClient
) -> None:
    with client.start_session(causal_consistency=True) as writing:
        for key in (LOW, HIGH, LOW - 1):  # the upper shard is behind the lower one
            ranged.insert_one({"key": key}, session=writing)
            with other_client.start_session(causal_consistency=True) as reading:
                assert writing.cluster_time is not None
                assert writing.operation_time is not None
                assert writing.cluster_time["signature"]["keyId"]
                reading.advance_cluster_time(writing.cluster_time)
                reading.advance_operation_time(writing.operation_time)
                there = other_client[ranged.database.name][ranged.name]
                assert there.find_one({"key": key}, session=reading) is not None
                assert there.count_documents({"key": HIGH}, session=reading) == (key != LOW)


GROUPS: Final = [
    {"$group": {"_id": "$key"}},
    {"$lookup": {"from": "unsharded", "localField": "_id", "foreignField": "_id", "as": "of_the_lower_shard"}},
]
MERGED: Final[dict[str, Document]] = {
    "find": {"find": "ranged", "sort": {"key": 1}},
    "count": {"count": "ranged"},
    "distinct": {"distinct": "ranged", "key": "key"},
    "sorted by the router": {"aggregate": "ranged", "pipeline": [{"$sort": {"key": 1}}], "cursor": {}},
    "counted by the router": {"aggregate": "ranged", "pipeline": [{"$count": "n"}], "cursor": {}},
    "grouped by the lower shard": {"aggregate": "ranged", "pipeline": GROUPS, "cursor": {}},
    "update": {"update": "ranged", "updates": [{"q": {"a": 1}, "u": {"$set": {"b": 1}}, "multi": True}]},
}


def time_of(mongod: Client, placed: Documents, operation: str, **document: object) -> Timestamp:
    """The time of an operation on a document, as a shard's oplog has it, whether in a transaction or not."""
    fields = {f"o.{name}": value for name, value in document.items()}
    query = {"ns": placed.full_name, "op": operation, **fields}
    [entry] = mongod.local["oplog.rs"].find(query).sort("$natural", -1).limit(1)
    time: Timestamp = entry["ts"]
    return time


@pytest.fixture
def ahead(other_client: Client, placed: Documents) -> Callable[[], None]:
    """Advances the clock of the lower shard far beyond what the upper one and the first router know."""

    def advance() -> None:
        for _ in range(50):
            other_client[placed.database.name].elsewhere.insert_one({})

    return advance


def test_statements_of_an_ordered_batch_have_times_in_their_order(
    cluster: RunningCluster, placed: Documents, ahead: Callable[[], None], lower_mongod: Client, upper_mongod: Client
) -> None:
    with cluster.direct("router.0") as gossiping:
        collection = gossiping[placed.database.name][placed.name]
        collection.find_one({"key": LOW})  # the client has heard of a time, and sends it with the batch
        ahead()
        collection.insert_many([{"_id": 1, "key": LOW}, {"_id": 2, "key": HIGH}])
        assert time_of(lower_mongod, placed, "i", _id=1) < time_of(upper_mongod, placed, "i", _id=2)
        ahead()
        collection.bulk_write([DeleteOne({"key": LOW}), DeleteOne({"key": HIGH})])
        assert time_of(lower_mongod, placed, "d", _id=1) < time_of(upper_mongod, placed, "d", _id=2)


def test_results_of_a_merge_are_later_than_what_it_has_read(
    cluster: RunningCluster,
    other_client: Client,
    placed: Documents,
    ahead: Callable[[], None],
    lower_mongod: Client,
    upper_mongod: Client,
) -> None:
    target = shard_by_range(placed.database, "target")
    stages: list[Document] = [{"$match": {"key": LOW}}, {"$set": {"key": HIGH}}, {"$merge": target.name}]
    with cluster.direct("router.0") as gossiping:
        collection = gossiping[placed.database.name][placed.name]
        collection.aggregate(stages)  # finds nothing, and lets the router learn where everything is
        ahead()
        other_client[placed.database.name][placed.name].insert_one({"_id": 1, "key": LOW})
        collection.aggregate(stages)
    assert time_of(lower_mongod, placed, "i", _id=1) < time_of(upper_mongod, target, "i", _id=1)


@pytest.mark.parametrize("name", MERGED)
def test_a_merged_reply_is_as_late_as_what_it_shows(
    cluster: RunningCluster, raw: RawClient, ranged: Documents, name: str
) -> None:
    """A session that has seen it sees it again, through another router that learns only the time of the reply."""
    db = ranged.database.name
    written = raw.command({"insert": ranged.name, "documents": [{"key": HIGH}]}, db=db)["operationTime"]
    with raw_client(cluster.address("router.1")) as other:
        reply = other.command(MERGED[name], db=db)
    assert written <= reply["operationTime"] <= time_in(reply)["clusterTime"], reply
    concern = {"level": "local", "afterClusterTime": reply["operationTime"]}
    again = raw.command({"find": ranged.name, "filter": {"key": HIGH}, "readConcern": concern}, db=db)
    assert len(again["cursor"]["firstBatch"]) == 1, again
