"""Drops that meet operations in progress, leftovers of earlier drops, and commands that arrive late."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

import pytest
from bson import Int64
from bson.binary import Binary
from pymongo.errors import PyMongoError

from shardwright.sharding.versions import UNSHARDED
from shardwright.wire.error_codes import ErrorCode
from tests.fail_points import fail_point
from tests.integration.waiting import eventually
from tests.shardd.migration.donor.moving import LOW, TOP, Move, daemon
from tests.shardd.mini_cluster import Client, MiniCluster
from tests.shardd.router_stand_in import ShardedNamespace, transaction_numbers

SECONDS_MAX = 60.0


class Beside:
    """A command that runs concurrently with the test.

    Attributes:
        reply: its reply, once it has ended.
    """

    def __init__(self, run: Callable[[], dict[str, Any]]) -> None:
        self.reply: dict[str, Any] = {}
        self._run = run
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def wait(self) -> dict[str, Any]:
        """The reply, once it has arrived."""
        self._thread.join(SECONDS_MAX)
        assert not self._thread.is_alive(), "a command does not end"
        return self.reply

    def _work(self) -> None:
        self.reply = self._run()


def mongod(mini: MiniCluster, shard: str) -> Client:
    return mini.shards[shard].members[0].mongod_client()


@contextmanager
def late_insert(mini: MiniCluster, sharded: ShardedNamespace, shard: str, document: dict[str, Any]) -> Iterator[Beside]:
    """An insert that a daemon has admitted before the block, and that its mongod executes about a second later."""
    block: dict[str, Any] = {
        "failCommands": ["insert"],
        "namespace": sharded.namespace,
        "blockConnection": True,
        "blockTimeMS": 1_000,
    }
    command = {"insert": sharded.collection, "documents": [document], "shardVersion": sharded.version(shard)}
    with mongod(mini, shard) as behind, mini.shard_client(shard) as client:
        with fail_point(behind, "failCommand", **block) as point:
            insert = Beside(lambda: dict(client[sharded.db].command(command, check=False)))
            point.wait_entered()
            yield insert
        insert.wait()


def drop(sharded: ShardedNamespace) -> dict[str, Any]:
    return sharded.run({"_shardsvrDropCollection": sharded.collection, "databaseVersion": sharded.database_version})


def drop_database(sharded: ShardedNamespace) -> dict[str, Any]:
    return sharded.run({"_shardsvrDropDatabase": 1, "databaseVersion": sharded.database_version})


def collections(mini: MiniCluster, sharded: ShardedNamespace) -> dict[str, list[str]]:
    """The collections of its database on each shard that has any."""
    names = {}
    for shard in mini.shards:
        with mongod(mini, shard) as client:
            if found := sorted(client[sharded.db].list_collection_names()):
                names[shard] = found
    return names


@pytest.mark.parametrize("shard", ["sh0", "sh1"])
@pytest.mark.parametrize("drop_it", [drop, drop_database])
def test_an_insert_admitted_before_does_not_recreate_it(
    mini: MiniCluster, ranged: ShardedNamespace, shard: str, drop_it: Callable[[ShardedNamespace], dict[str, Any]]
) -> None:
    key = {"sh0": 11, "sh1": 1}[shard]
    with late_insert(mini, ranged, shard, {"a": key}):
        assert drop_it(ranged)["ok"] == 1.0
        assert collections(mini, ranged) == {}
    assert collections(mini, ranged) == {}
    created = mini.shard_collection(ranged.namespace, {"a": "hashed"}, "sh0")
    assert created["ok"] == 1.0


def test_a_database_is_dropped_with_all_its_sharded_collections(mini: MiniCluster, ranged: ShardedNamespace) -> None:
    for name in ("d", "e"):
        assert mini.shard_collection(f"{ranged.db}.{name}", {"a": "hashed"}, "sh0")["ok"] == 1.0
    assert sorted(collections(mini, ranged)["sh1"]) == ["c", "d", "e"]
    assert drop_database(ranged)["ok"] == 1.0
    assert collections(mini, ranged) == {}


def test_a_long_update_is_ended(mini: MiniCluster, ranged: ShardedNamespace) -> None:
    """As in MongoDB, where it ends at its next yield. By itself it would take minutes."""
    ranged.insert(*({"a": number} for number in range(10, 1010)))
    slow = {"q": {"$where": "sleep(200); return true"}, "u": {"$set": {"b": 1}}, "multi": True}
    version = ranged.version()
    with mongod(mini, "sh0") as behind, mini.shard_client("sh0") as client:
        command = {"update": "c", "updates": [slow], "shardVersion": version}
        update = Beside(lambda: dict(client[ranged.db].command(command, check=False)))
        wanted = {"currentOp": 1, "ns": ranged.namespace, "op": "update"}
        eventually(lambda: behind.admin.command(wanted)["inprog"], what="the update has begun")
        assert drop(ranged)["ok"] == 1.0
        assert [error["code"] for error in update.wait()["writeErrors"]] == [175]  # QueryPlanKilled
    assert collections(mini, ranged) == {}


@pytest.mark.parametrize("late", ["insert", "commitTransaction", None])
def test_a_range_being_received_does_not_come_back(
    mini: MiniCluster, ranged: ShardedNamespace, late: str | None
) -> None:
    """The recipient's mongod executes a command of the clone late, or the recipient is suspended all the time."""
    ranged.insert(*({"a": number} for number in range(10, 110)))
    if late is None:
        stop = fail_point(daemon(mini, "sh1"), "migrateThreadHangAtStep2")
    else:
        behind = mini.shards["sh1"].members[0].mongod_client()
        stop = fail_point(behind, "failCommand", failCommands=[late], blockConnection=True, blockTimeMS=1_500)
    with stop as point:
        move = Move(ranged, LOW, TOP, "sh1")
        point.wait_entered()
        assert drop(ranged)["ok"] == 1.0
        assert collections(mini, ranged) == {}
    with pytest.raises(PyMongoError):
        move.wait()
    if late is not None:
        behind.close()
    assert collections(mini, ranged) == {}


def test_a_drop_removes_what_an_earlier_one_left_behind(mini: MiniCluster, db: str) -> None:
    namespace = f"{db}.c"
    version = mini.create_database(db, "sh0")
    with mongod(mini, "sh1") as stray, mini.shard_client("sh0") as client:
        stray[db].c.insert_one({"a": 1})
        create = {"_shardsvrCreateCollection": "c", "shardKey": {"a": "hashed"}, "databaseVersion": version}
        assert client[db].command(create, check=False)["code"] == 207  # InvalidUUID
        assert client[db].command({"_shardsvrDropCollection": "c", "databaseVersion": version})["ok"] == 1.0
        assert stray[db].list_collection_names() == []
        assert client[db].command(create)["ok"] == 1.0
    assert mini.shard_version(namespace, "sh1")


def test_the_zones_of_an_unsharded_collection_are_dropped_with_it(mini: MiniCluster, db: str) -> None:
    version = mini.create_database(db, "sh0")
    with mini.config_client() as config, mini.shard_client("sh0") as client:
        zone = {"ns": f"{db}.c", "min": {"a": 0}, "max": {"a": 1}, "tag": "z"}
        config.config.tags.insert_one({"_id": {"ns": f"{db}.c", "min": {"a": 0}}, **zone})
        client[db].command({"_shardsvrDropCollection": "c", "databaseVersion": version})
        assert config.config.tags.count_documents({"ns": f"{db}.c"}) == 0


def test_a_drop_command_is_executed_once(mini: MiniCluster, ranged: ShardedNamespace) -> None:
    def drop_request(number: int) -> dict[str, Any]:
        session = {"txnNumber": Int64(numbers[number])}  # the client adds its lsid
        return ranged.run({"_shardsvrDropCollectionParticipant": "u", "fromMigrate": True, **session}, "sh1")

    numbers = [next(transaction_numbers) for _ in range(4)]
    with mongod(mini, "sh1") as behind:
        behind[ranged.db].create_collection("u")
        assert drop_request(2)["ok"] == 1.0
        assert behind[ranged.db].list_collection_names() == ["c"]
        behind[ranged.db].create_collection("u")
        assert drop_request(2)["ok"] == 1.0
        assert drop_request(1)["code"] == 225  # TransactionTooOld
        assert sorted(behind[ranged.db].list_collection_names()) == ["c", "u"]
        assert drop_request(3)["ok"] == 1.0
        assert behind[ranged.db].list_collection_names() == ["c"]


def test_a_late_drop_command_spares_a_collection_sharded_since(mini: MiniCluster, ranged: ShardedNamespace) -> None:
    assert ranged.run({"_shardsvrDropCollectionParticipant": "c", "fromMigrate": True}, "sh1")["code"] == 117
    ranged.insert({"a": 1}, shard="sh1")
    assert len(ranged.documents("sh1")) == 1


def test_a_late_create_command_is_refused(mini: MiniCluster, ranged: ShardedNamespace) -> None:
    session = {"txnNumber": Int64(next(transaction_numbers))}  # the client adds its lsid
    id_index = {"v": 2, "key": {"_id": 1}, "name": "_id_"}
    uuid = Binary.from_uuid(uuid4())
    create = {"options": {}, "indexes": [], "collectionUUID": uuid, "idIndex": id_index, **session}
    with mongod(mini, "sh1") as behind:
        for expected in (["c", "u"], ["c"]):
            assert ranged.run({"_shardsvrCreateCollectionParticipant": "u", **create}, "sh1")["ok"] == 1.0
            assert sorted(behind[ranged.db].list_collection_names()) == expected
            behind[ranged.db].drop_collection("u")


def test_a_late_drop_command_spares_a_new_database_of_that_name(mini: MiniCluster, ranged: ShardedNamespace) -> None:
    version = ranged.database_version
    request = {"_shardsvrDropDatabaseParticipant": 1, "databaseVersion": version}
    assert drop_database(ranged)["ok"] == 1.0
    assert ranged.run(request, "sh1")["code"] == 117
    mini.shard_collection(ranged.namespace, {"a": "hashed"}, "sh0")
    assert ranged.run(request, "sh1")["code"] == 117
    assert collections(mini, ranged) == {"sh0": ["c"], "sh1": ["c"]}


def test_views_profiles_and_stored_functions_are_dropped_with_a_database(
    mini: MiniCluster, ranged: ShardedNamespace
) -> None:
    for shard in ("sh0", "sh1"):
        with mongod(mini, shard) as behind:
            behind[ranged.db]["system.js"].insert_one({"_id": "one", "value": 1})
    with mongod(mini, "sh0") as behind:
        behind[ranged.db].create_collection("v", viewOn="c")
        behind[ranged.db].command("profile", 2)
        behind[ranged.db].c.find_one()
        assert drop_database(ranged)["ok"] == 1.0
        behind[ranged.db].command("profile", 0)
    assert collections(mini, ranged) == {}


def test_time_series_are_dropped_with_a_database(mini: MiniCluster, ranged: ShardedNamespace) -> None:
    """mongod accepts no UUID for their buckets, and keeps the definitions of views while there are any."""
    with mongod(mini, "sh0") as behind:
        for name in ("a", "z"):
            behind[ranged.db].create_collection(name, timeseries={"timeField": "t"})
        assert drop_database(ranged)["ok"] == 1.0
    assert collections(mini, ranged) == {}


def test_a_collection_cannot_be_recreated_while_its_drop_could_be_resumed(
    mini: MiniCluster, ranged: ShardedNamespace
) -> None:
    """Resumed after a failover, or joined by another drop, it would drop data that was acknowledged since."""
    unsharded = {"shardVersion": UNSHARDED.to_document(), "databaseVersion": ranged.database_version}
    insert = {"insert": ranged.collection, "documents": [{}], "maxTimeMS": 300, **unsharded}
    block: dict[str, Any] = {
        "failCommands": ["delete"],
        "namespace": "config.system.sharding_ddl_coordinators",
        "blockConnection": True,
        "blockTimeMS": 1_000,
    }
    with mongod(mini, "sh0") as behind:
        with fail_point(behind, "failCommand", **block) as point:
            dropping = Beside(lambda: drop(ranged))
            point.wait_entered()
            assert ranged.run(insert)["code"] == ErrorCode.MaxTimeMSExpired
        assert dropping.wait()["ok"] == 1.0
    assert ranged.run({**insert, "maxTimeMS": 10_000})["n"] == 1
