"""Commands of coordinators and routers that reach a primary while it reads what earlier terms left behind."""

import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Final
from uuid import uuid4

import pytest
from bson import Int64
from bson.binary import Binary
from pymongo.errors import OperationFailure

from tests.shardd.mini_cluster import MAJORITY, Member, MiniCluster
from tests.shardd.router_stand_in import ShardedNamespace

SLOW_MILLISECONDS: Final = 3000
SECONDS_MAX: Final = 20
SESSION_ID: Final = "sh0_sh1_1"


@contextmanager
def restarting(member: Member, collection: str) -> Iterator[None]:
    """Start a stopped daemon; the block begins while it recovers, waiting for a slow find in ``config``."""
    slow: dict[str, Any] = {
        "failCommands": ["find"],
        "namespace": f"config.{collection}",
        "blockConnection": True,
        "blockTimeMS": SLOW_MILLISECONDS,
    }
    with member.mongod_client() as mongod:
        entered = mongod.admin.command("configureFailPoint", "failCommand", mode="alwaysOn", data=slow)["count"]
        try:
            member.daemon.start()
            mongod.admin.command("waitForFailPoint", "failCommand", timesEntered=entered + 1, maxTimeMS=60_000)
            member.wait_ready()
            yield
        finally:
            mongod.admin.command("configureFailPoint", "failCommand", mode="off")


def leave_section_behind(member: Member, namespace: str) -> None:
    """Persist the critical section of a migration to this shard."""
    reason = {"recvChunk": 1, "sessionId": SESSION_ID}
    migration = {
        "_id": Binary.from_uuid(uuid4()),
        "nss": namespace,
        "migrationSessionId": SESSION_ID,
        "range": {"min": {"a": 0}, "max": {"a": 10}},
        "donorShardIdForLoggingPurposesOnly": "sh0",
        "lsid": {"id": Binary.from_uuid(uuid4())},
        "txnNumber": Int64(1),
    }
    with member.mongod_client() as mongod:
        mongod.config.migrationRecipients.insert_one(migration)
        section = {"_id": namespace, "reason": reason, "blockReads": False}
        mongod.config.collection_critical_sections.insert_one(section)


@pytest.mark.parametrize("command", ["_shardsvrDropCollectionParticipant", "_shardsvrParticipantBlock"])
def test_a_participant_does_not_hold_up_the_recovery_of_a_migration(
    mini: MiniCluster, ranged: ShardedNamespace, command: str
) -> None:
    """The test is the coordinator, and the donor of the migration."""
    member = mini.shards["sh1"].members[0]
    member.daemon.stop(signal.SIGKILL)
    leave_section_behind(member, ranged.namespace)
    participate = {command: "c", "maxTimeMS": SECONDS_MAX * 1000}
    release = {"_recvChunkReleaseCritSec": ranged.namespace, "sessionId": SESSION_ID, "writeConcern": MAJORITY}
    with restarting(member, "migrationRecipients"), member.client() as client, ThreadPoolExecutor() as pool:
        sent = pool.submit(client[ranged.db].command, participate, check=False, allowable_errors=[117])
        assert client.admin.command({**release, "maxTimeMS": SECONDS_MAX * 1000})["ok"]
        reply = sent.result()
    if command == "_shardsvrDropCollectionParticipant":
        assert reply["code"] == 117, reply  # the collection is sharded
    else:
        assert reply["ok"], reply
        with member.client() as client:
            client[ranged.db].command({command: "c", "blockType": "Unblock"})
    with member.mongod_client() as mongod:
        assert mongod.config.migrationRecipients.count_documents({}) == 0
        assert mongod.config.collection_critical_sections.count_documents({}) == 0


def test_a_change_waits_until_those_of_earlier_terms_have_been_resumed(
    mini: MiniCluster, ranged: ShardedNamespace
) -> None:
    member = mini.shards["sh0"].members[0]
    drop = {"_shardsvrDropCollection": "c", "databaseVersion": ranged.database_version}
    member.daemon.stop(signal.SIGKILL)
    with restarting(member, "system.sharding_ddl_coordinators"), member.client() as client:
        try:
            client[ranged.db].command(drop)
        except OperationFailure as failure:
            raise AssertionError(failure.details) from failure
