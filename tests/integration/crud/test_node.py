"""The Node.js driver and Mongoose; the scripts contain the expected results."""

import subprocess
from pathlib import Path

import pytest
from pymongo.database import Database

from tests.integration.sharded import UPPER, Document, Documents, shard_by_range, shard_collection
from tests.local_cluster import RunningCluster

SCRIPTS = Path(__file__).parents[1] / "node"
SECONDS_MAX = 180.0


def run_node(script: str, *arguments: str) -> str:
    """Run a script to its end and return its output."""
    completed = subprocess.run(
        ["node", "--unhandled-rejections=strict", str(SCRIPTS / script), *arguments],
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )
    assert completed.returncode == 0, completed.stderr + completed.stdout
    return completed.stdout


@pytest.mark.parametrize("options", [{}, {"compressors": "zlib"}, {"loadBalanced": "false", "retryWrites": "false"}])
def test_reads_and_writes(cluster: RunningCluster, ranged: Documents, options: dict[str, str]) -> None:
    assert run_node("crud.mjs", cluster.client_uri(**options), ranged.database.name, ranged.name) == "done\n"


def test_gridfs(cluster: RunningCluster, database: Database[Document]) -> None:
    shard_collection(database, "files.chunks", {"files_id": 1, "n": 1})
    admin, namespace, middle = database.client.admin, f"{database.name}.files.chunks", {"files_id": 500, "n": 0}
    admin.command("split", namespace, middle=middle)
    admin.command("moveChunk", namespace, find=middle, to=UPPER)
    assert run_node("gridfs.mjs", cluster.client_uri(), database.name, "files") == "done\n"


def router_uris(cluster: RunningCluster) -> tuple[str, str]:
    return cluster.client_uri("router.0"), cluster.client_uri("router.1")


def test_sessions_and_transactions(cluster: RunningCluster, placed: Documents) -> None:
    uris = (cluster.client_uri(), *router_uris(cluster))
    assert run_node("transactions.mjs", *uris, placed.database.name, placed.name) == "done\n"


def test_change_streams(cluster: RunningCluster, placed: Documents) -> None:
    assert run_node("change_streams.mjs", *router_uris(cluster), placed.database.name, placed.name) == "done\n"


def test_an_application_with_mongoose(cluster: RunningCluster, database: Database[Document]) -> None:
    shard_by_range(database, "orders", key="region", split_at="n")
    assert run_node("mongoose.mjs", cluster.client_uri(), database.name) == "done\n"
