"""Clients that ask for much and read nothing."""

from contextlib import ExitStack

from deploy.ports import PortReservation
from tests.integration.health import sample
from tests.integration.raw_client import raw_client
from tests.integration.routers import extra_router
from tests.integration.sharded import Documents
from tests.integration.waiting import eventually
from tests.local_cluster import RunningCluster

MB = 1 << 20
DOCUMENT_BYTES = 15 * MB
CLIENTS = 16
BOUND_MB = 16


def test_replies_that_are_not_read_take_bounded_memory(cluster: RunningCluster, ranged: Documents) -> None:
    ranged.insert_one({"key": 1, "text": "x" * DOCUMENT_BYTES})
    with PortReservation() as ports:
        metrics_port = ports.hold_free()
    metrics = f"127.0.0.1:{metrics_port}"
    options = ("--metrics-port", str(metrics_port), "--unread-reply-mb", str(BOUND_MB))
    with extra_router(cluster, *options) as (address, _), ExitStack() as open_clients:
        find = {"find": ranged.name, "filter": {"key": 1}}
        for _ in range(CLIENTS):
            client = open_clients.enter_context(raw_client(address))
            client.send_command(find, db=ranged.database.name)
        # The system holds a part of each reply in the sockets, so that some of them fit.
        closed = CLIENTS // 2
        eventually(lambda: sample(metrics, "slow_clients_closed") >= closed, what="those that do not fit are closed")
        assert 0 < sample(metrics, "unread_reply_bytes") <= BOUND_MB * MB
        with raw_client(address) as reader:
            (document,) = reader.command(find, db=ranged.database.name)["cursor"]["firstBatch"]
            assert len(document["text"]) == DOCUMENT_BYTES
