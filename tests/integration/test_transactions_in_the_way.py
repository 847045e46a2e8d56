"""A transaction and a change of shape that would wait for each other, on different shards."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import pytest
from pymongo.errors import ExecutionTimeout, OperationFailure

from tests.integration.sharded import LOWER, UPPER
from tests.integration.waiting import eventually
from tests.local_cluster import Client, RunningCluster

DB: Final = "in_the_way"
NAMESPACE: Final = f"{DB}.c"
SECONDS_MAX: Final = 30.0
"""Half of the time after which a shard gives a transaction up by itself."""

Change = Callable[[Client], Any]

CHANGES: Final[dict[str, Change]] = {
    "rename": lambda router: router.admin.command("renameCollection", NAMESPACE, to=f"{DB}.d"),
    "drop": lambda router: router[DB].command("drop", "c"),
    "drop the database": lambda router: router[DB].command("dropDatabase"),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_the_transaction_gives_way(cluster: RunningCluster, change: Change) -> None:
    """It is inside the collection on one shard, where the change waits for it, and wants to enter it on the other."""
    with (
        cluster.direct("router.0") as own,
        cluster.direct("router.0") as other,
        ThreadPoolExecutor(1) as pool,
        own.start_session() as session,
    ):
        own.drop_database(DB)
        own.admin.command("enableSharding", DB, primaryShard=LOWER)
        own.admin.command("shardCollection", NAMESPACE, key={"k": 1})
        own.admin.command("split", NAMESPACE, middle={"k": 0})
        own.admin.command("moveChunk", NAMESPACE, find={"k": 1}, to=UPPER)
        own[DB].c.insert_many([{"k": number} for number in (-1, 1)])
        began = time.monotonic()
        session.start_transaction()
        assert own[DB].c.find_one({"k": 1}, session=session)
        changing = pool.submit(change, other)
        eventually(lambda: is_blocked(own), what="the other shard is blocked")
        with pytest.raises(OperationFailure) as failure:
            own[DB].c.find_one({"k": -1}, session=session)
        assert failure.value.has_error_label("TransientTransactionError")
        changing.result(SECONDS_MAX)
        assert time.monotonic() - began < SECONDS_MAX
        assert own.admin.command("checkMetadataConsistency")["cursor"]["firstBatch"] == []


def is_blocked(router: Client) -> bool:
    """Whether a critical section is on at the shard where the transaction has not been."""
    try:
        router[DB].c.find_one({"k": -1}, max_time_ms=300)
    except ExecutionTimeout:
        return True
    return False
