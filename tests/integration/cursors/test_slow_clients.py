"""Clients that request much data and read nothing."""

import re
from contextlib import ExitStack
from pathlib import Path

import bson

from shardwright.deploy.ports import PortReservation
from shardwright.wire.error_codes import ErrorCode
from tests.integration.health import sample
from tests.integration.raw_client import raw_client
from tests.integration.routers import extra_router, worker_of
from tests.integration.sharded import SPLIT_AT, Documents
from tests.integration.waiting import eventually
from tests.local_cluster import RunningCluster

MB = 1 << 20
DOCUMENT_BYTES = 14 * MB
CLIENTS = 30
BOUND_MB = 64
WITHIN_BOUND = BOUND_MB // 14
CURSORS = 16
SYSTEM_HOLDS = 8
"""A generous estimate of how many further replies fit into sockets when others are closed."""
OWN_MB = 160
"""A router's memory beyond the limit: its own, and the copies of the replies in progress."""

MERGE_MB = 70
"""The same for a merge of two of them."""


def resident_mb_max(pid: int) -> int:
    """The peak memory of a process."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1]) >> 10


def read_on(address: str, db: str, name: str) -> None:
    """Read one batch of a sorted cursor over both shards; the second shard's documents are held for later."""
    with raw_client(address) as client:
        find = {"find": name, "filter": {"key": {"$gte": 0}}, "sort": {"key": 1}, "batchSize": 0}
        cursor = client.command(find, db=db)["cursor"]
        reply = client.command({"getMore": bson.Int64(cursor["id"]), "collection": name}, db=db)
        assert reply["ok"] or reply["code"] == ErrorCode.ExceededMemoryLimit


def test_batches_held_by_idle_cursors_use_limited_memory(cluster: RunningCluster, ranged: Documents) -> None:
    ranged.insert_many([{"key": key, "text": "x" * DOCUMENT_BYTES} for key in (1, SPLIT_AT)])
    with PortReservation() as ports:
        metrics_port = ports.hold_free()
    metrics = f"127.0.0.1:{metrics_port}"
    bounds = ("--unread-reply-mb", str(BOUND_MB), "--unread-reply-seconds", "2")
    with extra_router(cluster, "--metrics-port", str(metrics_port), *bounds) as (address, _):
        pid = worker_of(address)
        assert pid is not None
        for _ in range(CURSORS):
            read_on(address, ranged.database.name, ranged.name)
            assert sample(metrics, "unread_reply_bytes") <= BOUND_MB * MB
        assert sample(metrics, "held_batch_bytes") > DOCUMENT_BYTES
        ended = sample(metrics, "cursors_ended_for_room_total") + sample(metrics, "long_replies_refused_total")
        assert ended >= CURSORS - WITHIN_BOUND - 1
        assert resident_mb_max(pid) <= BOUND_MB + OWN_MB + MERGE_MB


def test_many_clients_can_sort_more_than_the_memory_for_their_replies(
    cluster: RunningCluster, ranged: Documents
) -> None:
    orders = range(3000)
    keys = {order: order % 2 * SPLIT_AT for order in orders}
    ranged.insert_many([{"key": keys[order], "order": order, "text": "x" * 10_000} for order in orders])
    with ExitStack() as stack:
        address, _ = stack.enter_context(extra_router(cluster, "--unread-reply-mb", str(BOUND_MB)))
        client = stack.enter_context(raw_client(address))
        find = {"find": ranged.name, "sort": {"order": 1}, "batchSize": 0}
        ids = [client.command(find, db=ranged.database.name)["cursor"]["id"] for _ in range(CURSORS)]
        found: dict[int, list[int]] = {cursor_id: [] for cursor_id in ids}
        while ids:
            for cursor_id in tuple(ids):
                get_more = {"getMore": bson.Int64(cursor_id), "collection": ranged.name}
                reply = client.command(get_more, db=ranged.database.name)
                assert reply["ok"], reply
                found[cursor_id] += [document["order"] for document in reply["cursor"]["nextBatch"]]
                if not reply["cursor"]["id"]:
                    ids.remove(cursor_id)
        assert list(found.values()) == [list(orders)] * CURSORS


def test_unread_replies_use_limited_memory(cluster: RunningCluster, ranged: Documents) -> None:
    ranged.insert_many([{"key": 1, "text": "x" * DOCUMENT_BYTES}, {"key": 2}])
    find = {"find": ranged.name, "filter": {"key": 1}}
    with PortReservation() as ports:
        metrics_port = ports.hold_free()
    metrics = f"127.0.0.1:{metrics_port}"
    bounds = ("--unread-reply-mb", str(BOUND_MB), "--unread-reply-seconds", "2")
    with extra_router(cluster, "--metrics-port", str(metrics_port), *bounds) as (address, _):
        pid = worker_of(address)
        assert pid is not None
        with ExitStack() as open_clients:
            for _ in range(CLIENTS):
                client = open_clients.enter_context(raw_client(address))
                client.send_command(find, db=ranged.database.name)
            with raw_client(address) as other:
                small = {"find": ranged.name, "filter": {"key": 2}}
                assert other.command(small, db=ranged.database.name)["cursor"]["firstBatch"][0]["key"] == 2
            eventually(
                lambda: (
                    sample(metrics, "slow_clients_closed_total") + sample(metrics, "long_replies_refused_total")
                    >= CLIENTS - WITHIN_BOUND - SYSTEM_HOLDS
                ),
                what="those that do not fit are closed or refused",
            )
            with raw_client(address) as reader:
                (document,) = reader.command(find, db=ranged.database.name)["cursor"]["firstBatch"]
                assert len(document["text"]) == DOCUMENT_BYTES
            assert 0 < sample(metrics, "unread_reply_bytes") <= BOUND_MB * MB
        eventually(lambda: sample(metrics, "unread_reply_bytes") == 0, what="nothing waits for clients that left")
        eventually(lambda: sample(metrics, 'pool_connections{state="in_use"}') == 0, what="connections are given back")
        assert sample(metrics, "unread_reply_bytes_max") <= BOUND_MB * MB
        assert resident_mb_max(pid) <= BOUND_MB + OWN_MB
