"""The record of the feature version on a shard, and a daemon that does not know it."""

import subprocess
from typing import Any

from pymongo import MongoClient

from shardwright.daemon.process_environment import EXIT_NEED_DOWNGRADE
from shardwright.sharding.feature_version import NEWEST
from tests.integration.waiting import eventually
from tests.shardd.mini_cluster import MiniCluster

QUERY = {"_id": "featureVersion"}


def recorded(mongod: MongoClient[dict[str, Any]]) -> int | None:
    """The version that a shard has recorded."""
    document = mongod.admin["system.version"].find_one(QUERY)
    return None if document is None else int(document["version"])


def test_a_shard_records_the_version_and_its_daemon_refuses_a_newer_one(mini: MiniCluster) -> None:
    [member] = mini.shards["sh0"].members
    with member.mongod_client() as mongod:
        eventually(lambda: recorded(mongod) == NEWEST, what="the version is recorded")
        versions = mongod.admin["system.version"]
        member.daemon.stop()
        try:
            versions.update_one(QUERY, {"$set": {"version": NEWEST + 1}})
            completed = subprocess.run(member.daemon.arguments, capture_output=True, text=True, timeout=60, check=False)
        finally:
            versions.update_one(QUERY, {"$set": {"version": NEWEST}})
            member.daemon.start()
            member.wait_ready()
    assert completed.returncode == EXIT_NEED_DOWNGRADE, completed.stderr
    assert f"the feature version of the cluster is {NEWEST + 1}" in completed.stderr
    assert "Traceback" not in completed.stderr + completed.stdout
