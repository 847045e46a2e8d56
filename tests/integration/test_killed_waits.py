"""Killed sessions whose operations wait in a shard daemon for a critical section, where no mongod knows them."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final
from uuid import uuid4

import pytest
from bson import Int64
from bson.binary import Binary

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
