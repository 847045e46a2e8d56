"""A shard that is removed and added again under its name, at other addresses: all daemons find the new one."""

from collections.abc import Iterator
from typing import Final

import pytest

from tests.local_cluster import Client, RunningCluster, running_cluster

NAME: Final = "shard1"
SOON: Final = {"socketTimeoutMS": 15_000}
"""Less than the 20 s for which a member of a set is looked for in vain."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCluster]:
    """The cluster, whose second shard all daemons have used before it was exchanged."""
    with running_cluster(tmp_path_factory.mktemp("again"), "--shards", "2", "--routers", "2") as running:
        for index in range(2):
            with running.direct(f"router.{index}") as router:
                use(router, f"before{index}")
        with running.client() as client:
            for name in client.list_database_names():
                if name.startswith("before"):
                    client.drop_database(name)
        before = running.address(f"{NAME}.0.shardd")
        running.run("remove-shard", NAME)
        running.run("add-shard")
        with running.client() as client:
            (entry,) = client.config.shards.find({"_id": NAME})
        assert before not in entry["host"]
        yield running


def use(router: Client, database: str) -> None:
    """Have the router and both shards talk to the second shard."""
    router.admin.command("enableSharding", database, primaryShard=NAME)
    router[database].plain.insert_one({"_id": 1})
    router.admin.command("movePrimary", database, to="shard0")
    router.admin.command("shardCollection", f"{database}.c", key={"_id": 1})
    router.admin.command("moveChunk", f"{database}.c", find={"_id": 0}, to=NAME)
    router[database].c.insert_one({"_id": 1})
    router.admin.command("movePrimary", database, to=NAME)
    assert router[database].plain.find_one() == router[database].c.find_one() == {"_id": 1}


@pytest.mark.parametrize("router", ["router.0", "router.1"])
def test_all_daemons_find_the_new_shard(cluster: RunningCluster, router: str) -> None:
    with cluster.direct(router, **SOON) as client:
        use(client, f"after{router[-1]}")
