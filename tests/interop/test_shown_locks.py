"""``config.locks`` and ``config.lockpings`` after the same changes on a genuine cluster and on ours."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from bson.objectid import ObjectId

from tests.genuine_cluster import SHARDS
from tests.integration.sharded import LOWER, UPPER
from tests.integration.waiting import eventually
from tests.local_cluster import Client, RunningCluster

DB = "interop_locks"


class Cluster:
    """One of the two clusters, whose locks are read after each change."""

    def __init__(self, client: Client, shards: tuple[str, ...]) -> None:
        self.client, self.shards = client, shards
        client.admin.command("enableSharding", DB, primaryShard=shards[0])

    def after(self, change: str, subject: str = f"{DB}.c", **arguments: Any) -> object:  # noqa: ANN401 - of any type
        """The locks after a command on the admin database, or on this one."""
        database = self.client.admin if "." in subject or change == "movePrimary" else self.client[DB]
        command: dict[str, Any] = {change: subject, **arguments}
        database.command(command)
        return sorted(map(self._described, self.client.config.locks.find({"_id": {"$regex": f"^{DB}"}})), key=str)

    def released(self, name: str) -> dict[str, Any] | None:
        """The lock of a name, once it is shown as released."""
        found = self.client.config.locks.find_one({"_id": name, "state": 0})
        return None if found is None else self._described(found)

    def _described(self, lock: dict[str, Any]) -> dict[str, Any]:
        """A lock without what differs between clusters: names of shards, times, the numbers of threads and terms."""
        process, _, thread = lock["who"].partition(":")
        assert process == lock["process"]
        assert isinstance(lock["ts"], ObjectId)
        assert (lock["ts"].binary[8:], lock["when"] is None) == (bytes(4), False)
        number = self.shards.index(process) if process in self.shards else process
        thread = thread.partition("-")[0].rstrip("0123456789")
        return {**lock, "ts": None, "when": None, "process": number, "who": thread}


@pytest.fixture(scope="module")
def clusters(client: Client, cluster: RunningCluster) -> Iterator[tuple[Cluster, Cluster]]:
    """The genuine cluster and ours."""
    with cluster.direct("router.0") as own:
        yield Cluster(client, SHARDS), Cluster(own, (LOWER, UPPER))
        for each in (client, own):
            each.drop_database(DB)


def test_the_same_locks_are_shown(clusters: tuple[Cluster, Cluster]) -> None:
    def same(change: str, *subject: str, **arguments: Any) -> None:  # noqa: ANN401 - of any type
        genuine, own = (each.after(change, *subject, **arguments) for each in clusters)
        assert own == genuine, change

    same("shardCollection", key={"a": 1})
    same("split", middle={"a": 0})
    for each in clusters:
        each.client.admin.command("moveChunk", f"{DB}.c", find={"a": 5}, to=each.shards[1])
    same("collMod", "c", validationLevel="moderate")
    same("createIndexes", "c", indexes=[{"key": {"a": 1, "b": 1}, "name": "a_1_b_1"}])
    same("refineCollectionShardKey", key={"a": 1, "b": 1})
    same("setAllowMigrations", allowMigrations=True)
    same("renameCollection", to=f"{DB}.d")
    same("drop", "d")
    same("create", "plain")
    same("drop", "plain")


def test_moves_are_shown(clusters: tuple[Cluster, Cluster]) -> None:
    moved = f"{DB}.moved"
    for each in clusters:
        each.client.admin.command("shardCollection", moved, key={"a": 1})
        each.client.admin.command("split", moved, middle={"a": 0})
        each.client.admin.command("moveChunk", moved, find={"a": 5}, to=each.shards[1])
    # A genuine config server answers before it shows the lock as released.
    genuine, own = (eventually(partial(each.released, moved)) for each in clusters)
    assert own == genuine


def test_the_processes_say_that_they_are_alive(clusters: tuple[Cluster, Cluster]) -> None:
    for each in clusters:
        eventually(partial(_are_alive, each))


def _are_alive(cluster: Cluster) -> bool:
    pings = cluster.client.config.lockpings.find({"ping": {"$type": "date"}})
    return {ping["_id"] for ping in pings} >= {"config", *cluster.shards}
