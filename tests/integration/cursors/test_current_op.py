"""``currentOp`` shows all operations, not only as many as fit into a first batch."""

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.integration.raw_client import raw_client
from tests.integration.sharded import LOWER
from tests.local_cluster import RunningCluster

CONNECTIONS = 120
"""More than the 101 documents that a first batch has by default."""


@pytest.fixture(scope="module")
def clients(cluster: RunningCluster) -> Iterator[set[str]]:
    """The addresses of many idle connections to the mongod of the lower shard."""
    with ExitStack() as connections:
        addresses = set[str]()
        for _ in range(CONNECTIONS):
            connection = connections.enter_context(raw_client(cluster.address("shard0.0.mongod")))
            assert connection.command({"ping": 1})["ok"]
            host, port = connection.socket.getsockname()
            addresses.add(f"{host}:{port}")
        yield addresses


@pytest.mark.parametrize(
    ("process", "field", "shard"), [("router.0", "client_s", {"shard": LOWER}), ("shard0.0.shardd", "client", {})]
)
def test_more_operations_than_a_first_batch_holds(
    cluster: RunningCluster, clients: set[str], process: str, field: str, shard: dict[str, str]
) -> None:
    # A connection to another mongod may have the same port at this end.
    command = {"currentOp": 1, "$all": True, **shard}
    with cluster.direct(process) as client:
        shown = client.admin.command({**command, field: {"$in": list(clients)}})["inprog"]
        none = client.admin.command({**command, field: "nobody"})["inprog"]
    assert {each[field] for each in shown} == clients
    assert len(shown) == CONNECTIONS
    assert {each.get("shard") for each in shown} == {shard.get("shard")}
    assert none == []
