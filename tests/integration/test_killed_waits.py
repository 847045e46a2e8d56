"""Killed sessions whose operations wait in a shard daemon for a critical section, where no mongod knows them."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final
from uuid import uuid4

import pytest
from bson import Int64
from bson.binary import Binary
from pymongo.errors import OperationFailure

from shardwright.wire.error_codes import ErrorCode
from tests.fail_points import fail_point
from tests.integration.raw_client import raw_client
from tests.integration.sharded import LOWER, SPLIT_AT, UPPER, Document, Documents
from tests.integration.waiting import eventually
from tests.local_cluster import RunningCluster

KINDS: Final[dict[str, Document]] = {
    "plain": {},
    "retryable": {"txnNumber": Int64(1)},
    "of a transaction": {"txnNumber": Int64(1), "autocommit": False, "startTransaction": True},
}

SHOWN: Final[list[Document]] = [{"$currentOp": {}}, {"$match": {"waitingForLock": True, "command.insert": "ranged"}}]


@pytest.mark.parametrize("killer", ["router.0", "router.1"])
@pytest.mark.parametrize("fields", KINDS.values(), ids=KINDS)
def test_a_killed_write_does_not_wait_for_a_move(
    cluster: RunningCluster, placed: Documents, fields: dict[str, Any], killer: str
) -> None:
    """It fails at once, and writes nothing later; nor is its transaction committed."""
    client, lsid = placed.database.client, {"id": Binary.from_uuid(uuid4())}
    command = {"insert": placed.name, "documents": [{"_id": "killed", "key": SPLIT_AT + 1}], "lsid": lsid, **fields}
    with cluster.direct(f"{UPPER}.0.shardd") as donor, ThreadPoolExecutor() as pool:
        with fail_point(donor, "hangAfterBlockingWrites") as point:
            moving = pool.submit(client.admin.command, "moveChunk", placed.full_name, find={"key": SPLIT_AT}, to=LOWER)
            point.wait_entered()
            with raw_client(cluster.address("router.0")) as raw:
                writing = pool.submit(raw.command, command, db=placed.database.name)
                with cluster.direct(killer) as other:

                    def is_killed() -> bool:
                        other.admin.command("killSessions", [lsid])
                        return writing.done()

                    eventually(is_killed, within=20, what="it is killed")
                reply = writing.result()
                if "autocommit" in fields:
                    assert not raw.command({"commitTransaction": 1, "lsid": lsid, **fields})["ok"]
        moving.result()
    assert (reply["ok"], reply["code"]) == (0, ErrorCode.Interrupted)
    assert placed.count_documents({}) == 0


@pytest.mark.parametrize("shown", [{"localOps": True}, {}], ids=["by the router", "by the shard"])
def test_an_operation_is_killed_while_it_waits(cluster: RunningCluster, placed: Documents, shown: Document) -> None:
    """It fails at once, and writes nothing later, although the shard keeps the range."""
    client, lsid = placed.database.client, {"id": Binary.from_uuid(uuid4())}
    command = {"insert": placed.name, "documents": [{"_id": "killed", "key": SPLIT_AT + 1}], "lsid": lsid}
    find: list[Document] = [{"$currentOp": shown}, {"$match": {"command.insert": placed.name}}]
    with (
        cluster.direct(f"{UPPER}.0.shardd") as donor,
        ThreadPoolExecutor() as pool,
        raw_client(cluster.address("router.0")) as raw,
        fail_point(donor, "failMigrationCommit"),
    ):
        with fail_point(donor, "hangAfterBlockingWrites") as point:
            moving = pool.submit(client.admin.command, "moveChunk", placed.full_name, find={"key": SPLIT_AT}, to=LOWER)
            point.wait_entered()
            writing = pool.submit(raw.command, command, db=placed.database.name)
            eventually(lambda: list(donor.admin.aggregate(SHOWN)), within=20, what="the shard shows it")
            with cluster.direct("router.0") as router:
                (operation,) = router.admin.aggregate(find)
                router.admin.command("killOp", op=operation["opid"])
            reply = writing.result()
        with pytest.raises(OperationFailure):
            moving.result()
    assert (reply["ok"], reply["code"]) == (0, ErrorCode.Interrupted)
    assert placed.count_documents({}) == 0
