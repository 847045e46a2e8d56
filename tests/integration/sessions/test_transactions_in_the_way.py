"""A transaction and a change of shape that would wait for each other, on different shards."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import pytest
from pymongo.client_session import ClientSession
from pymongo.errors import ExecutionTimeout, OperationFailure

from tests.integration.sharded import LOWER, UPPER
from tests.integration.waiting import eventually
from tests.local_cluster import Client, RunningCluster

DB: Final = "in_the_way"
NAMESPACE: Final = f"{DB}.c"
SECONDS_MAX: Final = 30.0
"""Half of the time after which a shard gives a transaction up by itself."""

WRITERS: Final = 10

Change = Callable[[Client], Any]

CHANGES: Final[dict[str, Change]] = {
    "rename": lambda router: router.admin.command("renameCollection", NAMESPACE, to=f"{DB}.d"),
    "drop": lambda router: router[DB].command("drop", "c"),
    "drop the database": lambda router: router[DB].command("dropDatabase"),
}


def place(router: Client) -> None:
    """Create the collection, with a chunk on either shard."""
    router.admin.command("enableSharding", DB, primaryShard=LOWER)
    router.admin.command("shardCollection", NAMESPACE, key={"k": 1})
    router.admin.command("split", NAMESPACE, middle={"k": 0})
    router.admin.command("moveChunk", NAMESPACE, find={"k": 1}, to=UPPER)


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
        place(own)
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


def test_transactions_that_begin_again_do_not_hold_up_a_rename(cluster: RunningCluster) -> None:
    """Each is inside on the other shard when it comes to the primary shard, where the rename has begun to wait."""
    with cluster.direct("router.0") as own, ThreadPoolExecutor(WRITERS + 1) as pool:
        own.drop_database(DB)
        place(own)
        own[DB].c.insert_many([{"k": number} for number in range(-WRITERS, WRITERS)])
        is_over = threading.Event()

        def run_transactions(number: int) -> int:
            def change(session: ClientSession) -> None:
                for key in (number, number - WRITERS):
                    own[DB].c.update_one({"k": key}, {"$inc": {"n": 1}}, session=session)

            count = 0
            while not is_over.is_set():
                with own.start_session() as session:
                    session.with_transaction(change)
                count += 1
            return count

        running = [pool.submit(run_transactions, number) for number in range(WRITERS)]
        try:
            eventually(
                lambda: own[DB].c.find_one({"k": WRITERS - 1, "n": {"$gte": 1}}), what="transactions are committed"
            )
            began = time.monotonic()
            pool.submit(CHANGES["rename"], own).result(60)
            assert time.monotonic() - began < SECONDS_MAX
        finally:
            is_over.set()
        assert all(each.result(60) for each in running)
        assert own[DB].d.count_documents({"n": {"$gte": 1}}) == 2 * WRITERS


def is_blocked(router: Client) -> bool:
    """Whether a critical section is on at the shard where the transaction has not been."""
    try:
        router[DB].c.find_one({"k": -1}, max_time_ms=300)
    except ExecutionTimeout:
        return True
    return False
