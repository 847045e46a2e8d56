"""The processes of a cluster may start in any order: each waits for its dependencies, and recovers its state."""

import socket
from collections.abc import Iterator
from functools import partial
from itertools import permutations

import pytest

from shardwright.deploy.layout import Layout
from shardwright.deploy.supervisor import Supervisor
from shardwright.deploy.topology import ProcessPlan, Role
from tests.integration.sharded import LOWER, UPPER, Documents, placement, shard_by_range
from tests.integration.waiting import eventually
from tests.local_cluster import RunningCluster, running_cluster

SERVE_SECONDS_MAX = 60.0

ORDERS = list(permutations(Role))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCluster]:
    with running_cluster(tmp_path_factory.mktemp("orders"), "--orphan-cleanup-delay", "0") as running:
        yield running


@pytest.fixture(scope="module")
def documents(cluster: RunningCluster) -> Iterator[Documents]:
    with cluster.client(serverSelectionTimeoutMS=60_000) as client:
        yield shard_by_range(client["orders"])


def has_started(plan: ProcessPlan) -> bool:
    """Whether a process listens, even if it cannot serve yet: daemons have opened all their ports by then."""
    try:
        socket.create_connection(("127.0.0.1", plan.metrics_port or plan.port)).close()
    except OSError:
        return False
    return True


@pytest.mark.matrix(share=0.1)
@pytest.mark.parametrize("order", ORDERS, ids="-".join)
def test_any_order(cluster: RunningCluster, documents: Documents, order: tuple[Role, ...]) -> None:
    layout = Layout(cluster.directory)
    state = layout.require()
    supervisor = Supervisor(layout, state)
    for plan in state.topology.processes:
        cluster.kill(plan.name)
    for role in order:
        plans = state.topology.of_role(role)
        for plan in plans:
            supervisor.start(plan)
        for plan in plans:
            eventually(partial(has_started, plan), within=SERVE_SECONDS_MAX, what=f"{plan.name} listens")
    before = documents.count_documents({})
    documents.insert_one({"key": 1})
    documents.insert_one({"key": 999})
    assert documents.count_documents({}) == before + 2
    # The catalog can be changed, and both shards know who they are.
    admin = documents.database.client.admin
    to = LOWER if placement(documents.database.client, documents.full_name)[-1] == UPPER else UPPER
    admin.command("moveChunk", documents.full_name, find={"key": 500}, to=to)
    assert documents.count_documents({}) == before + 2
