"""Creations of indexes that wait, as ``currentOp`` shows them."""

from concurrent.futures import ThreadPoolExecutor

from tests.fail_points import fail_point
from tests.integration.sharded import Document, Documents
from tests.local_cluster import RunningCluster


def shown(collection: Documents) -> list[Document]:
    """The creations that are under way for a collection, as the router shows them."""
    command = {"currentOp": 1, "desc": "CreateIndexesCoordinator", "ns": collection.full_name}
    found: list[Document] = collection.database.client.admin.command(command)["inprog"]
    return found


def test_creations_with_long_comments_are_shown(cluster: RunningCluster, placed: Documents) -> None:
    """Which do not fit into one document, nor into the command to the mongod."""

    def create(name: str) -> Document:
        index = {"key": {name: 1}, "name": name}
        command = {"createIndexes": placed.name, "indexes": [index], "comment": name * 15_000_000}
        return placed.database.command(command)

    with cluster.direct("shard0.0.shardd") as daemon, ThreadPoolExecutor() as threads:
        with fail_point(daemon, "hangInDDLCoordinator", operationType="createIndexes", at="begin") as point:
            creations = [threads.submit(create, name) for name in "ab"]
            point.wait_entered(2)
            operations = shown(placed)
        assert [creation.result()["ok"] for creation in creations] == [1, 1]
    assert [list(each["command"]) for each in operations] == [["$truncated"]] * 2
