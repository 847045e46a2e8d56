"""Chunks of a small cluster that are split as they grow, with a chunk size of 1 MB."""

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from random import Random
from typing import Any
from urllib.request import urlopen

import pytest
from bson.max_key import MaxKey
from bson.min_key import MinKey

from shardwright.wire.error_codes import ErrorCode
from tests.fail_points import fail_point
from tests.integration.waiting import eventually
from tests.shardd.mini_cluster import Client, MiniCluster
from tests.shardd.router_stand_in import ShardedNamespace

FAT = "x" * 20_000


@pytest.fixture
def config(mini: MiniCluster) -> Iterator[Client]:
    """The config server, with auto-splitting on; the balancer makes no rounds, but hot ends may move."""
    with mini.config_client() as client:
        settings = client.config.settings
        before = list(settings.find())
        settings.update_one({"_id": "autosplit"}, {"$set": {"enabled": True}}, upsert=True)
        settings.update_one({"_id": "balancer"}, {"$set": {"mode": "autoSplitOnly", "stopped": False}}, upsert=True)
        yield client
        for document in before:
            settings.replace_one({"_id": document["_id"]}, document, upsert=True)


@pytest.fixture
def daemon(mini: MiniCluster) -> Iterator[Client]:
    with mini.shard_client("sh0") as client:
        yield client


class Growing(ShardedNamespace):
    """A collection with a chunk size of 1 MB."""

    def __init__(self, mini: MiniCluster, db: str, key: Mapping[str, Any]) -> None:
        super().__init__(mini, f"{db}.c", dict(key), "sh0")
        configure = {"_configsvrConfigureCollectionBalancing": self.namespace, "chunkSize": 1}
        with mini.config_client() as client:
            client.admin.command(configure)
        self.numbers = 0

    def write(self, *keys: int) -> None:
        """Insert documents of 20 kB with these values of the key ``k``, each where it belongs."""
        for value in keys:
            self.numbers += 1
            document = {"_id": self.numbers, "k": value, "v": FAT}
            while not self._insert(document):
                pass

    def _insert(self, document: dict[str, Any]) -> bool:
        """Insert a document by the present placement; returns whether that was still the present one."""
        versions = {shard: self.version(shard) for shard in ("sh0", "sh1")}
        # Only now, so that the owner has the chunk at the version that is sent, or refuses it.
        owner = next(each["shard"] for each in reversed(self.chunks()) if self._begins_below(each, document["k"]))
        command = {"insert": self.collection, "documents": [document]}
        reply = self.versioned(command, owner, version=versions[owner])
        errors = reply.get("writeErrors", ())
        assert reply["ok"], reply
        assert all(error["code"] == ErrorCode.StaleConfig for error in errors), reply
        return not errors

    @staticmethod
    def _begins_below(chunk: Mapping[str, Any], value: int) -> bool:
        low = chunk["min"]["k"]
        return bool(low == MinKey() or low <= value)

    def wait_chunks(self, number: int) -> list[dict[str, Any]]:
        """Wait until there are this many chunks, and return them."""
        return eventually(lambda: found if len(found := self.chunks()) >= number else None, what=f"{number} chunks")


def attempts(daemon: Client, mini: MiniCluster) -> dict[str, float]:
    """The results of all attempts so far, from the metrics."""
    port = mini.shards["sh0"].members[0].metrics_port
    with urlopen(f"http://127.0.0.1:{port}/metrics") as reply:
        lines = reply.read().decode().splitlines()
    prefix = 'shardwright_shardd_auto_splits_total{result="'
    return {line[len(prefix) :].split('"')[0]: float(line.split()[-1]) for line in lines if line.startswith(prefix)}


def test_a_chunk_that_grows_is_split_into_parts_of_the_chunk_size(mini: MiniCluster, db: str, config: Client) -> None:
    sharded = Growing(mini, db, {"k": 1})
    assert sharded.split([{"k": 0}, {"k": 1000}])["ok"]
    keys = list(range(200))
    Random(3).shuffle(keys)
    sharded.write(*keys)  # 4 MB between both bounds
    sharded.wait_chunks(3 + 3)
    inner = [each for each in sharded.chunks() if each["min"]["k"] not in (MinKey(), 1000)]
    sizes = [sum(each["min"]["k"] <= key < each["max"]["k"] for key in keys) * len(FAT) for each in inner]
    assert all(size >= 0.4 * (1 << 20) for size in sizes), sizes
    assert {each["shard"] for each in sharded.chunks()} == {"sh0"}


def test_waiting_for_the_splits(mini: MiniCluster, db: str, config: Client, daemon: Client) -> None:
    sharded = Growing(mini, db, {"k": 1})
    sharded.write(*([-10] * 50 + [10] * 50))
    daemon[db].command("waitForOngoingChunkSplits")
    assert len(sharded.chunks()) >= 2


def test_the_hot_end_is_split_off_and_moves(mini: MiniCluster, db: str, config: Client) -> None:
    sharded = Growing(mini, db, {"k": 1})
    assert sharded.split([{"k": 0}])["ok"]
    sharded.write(*range(100))

    def moved() -> bool:
        # Where it is in the end depends on how quickly it moved: it may be split again, and the new end move back.
        commits = config.config.changelog.find({"what": "moveChunk.commit", "ns": sharded.namespace})
        ends = [commit["details"] for commit in commits if commit["details"]["max"]["k"] == MaxKey()]
        return any(end["min"]["k"] > 0 and (end["from"], end["to"]) == ("sh0", "sh1") for end in ends)

    eventually(moved, what="the hot end on the other shard")
    assert not [each for each in sharded.chunks() if each.get("jumbo")]
    find = {"find": "c", "batchSize": 1000}

    def is_complete() -> bool:
        # A shard whose part of the placement changes at just this moment refuses the read.
        replies = [sharded.versioned(find, shard) for shard in ("sh0", "sh1")]
        found = [document["_id"] for reply in replies if reply["ok"] for document in reply["cursor"]["firstBatch"]]
        return sorted(found) == list(range(1, 101))

    eventually(is_complete, what="each document on one shard")


def test_a_chunk_of_one_key_stays_whole(mini: MiniCluster, db: str, config: Client, daemon: Client) -> None:
    sharded = Growing(mini, db, {"k": 1})
    assert sharded.split([{"k": 0}, {"k": 1000}])["ok"]
    before = attempts(daemon, mini).get("noSplitPoints", 0)
    sharded.write(*[7] * 120)
    eventually(lambda: attempts(daemon, mini).get("noSplitPoints", 0) > before, what="an attempt")
    assert len(sharded.chunks()) == 3


@pytest.mark.matrix(share=0.3)
@pytest.mark.parametrize("off", ["setting", "collection", "parameter"])
def test_nothing_is_split_when_that_is_disabled(
    mini: MiniCluster, db: str, config: Client, daemon: Client, off: str
) -> None:
    sharded = Growing(mini, db, {"k": 1})
    if off == "setting":
        config.config.settings.update_one({"_id": "autosplit"}, {"$set": {"enabled": False}})
    elif off == "collection":
        configure = {"_configsvrConfigureCollectionBalancing": sharded.namespace, "enableAutoSplitter": False}
        config.admin.command(configure)
    else:
        daemon.admin.command("setParameter", 1, autoSplitChunks=False)
    before = attempts(daemon, mini)
    try:
        sharded.write(*range(120))
        if off != "parameter":
            disabled = before.get("disabled", 0)
            eventually(lambda: attempts(daemon, mini).get("disabled", 0) > disabled, what="an attempt")
        assert len(sharded.chunks()) == 1
    finally:
        daemon.admin.command("setParameter", 1, autoSplitChunks=True)
    assert attempts(daemon, mini).get("split", 0) == before.get("split", 0)


def test_a_split_waits_for_a_move_of_its_chunk(mini: MiniCluster, db: str, config: Client, daemon: Client) -> None:
    sharded = Growing(mini, db, {"k": 1})
    assert sharded.split([{"k": 0}, {"k": 1000}])["ok"]
    sharded.write(*range(20))
    move: dict[str, Any] = {
        "_configsvrMoveRange": sharded.namespace,
        "toShard": "sh1",
        "min": {"k": 0},
        "max": {"k": 1000},
    }
    before = attempts(daemon, mini)
    move |= {"writeConcern": {"w": "majority"}, "forceJumbo": 1}
    with (
        mini.config_client() as mover,
        ThreadPoolExecutor(1) as pool,
        fail_point(daemon, "moveChunkHangAtStep4") as hanging,
    ):
        moving = pool.submit(mover.admin.command, move)
        hanging.wait_entered()
        sharded.write(*range(20, 120))
        assert len(sharded.chunks()) == 3
        hanging.turn_off()
        moving.result(60)
    assert sum(attempts(daemon, mini).values()) >= sum(before.values())
    eventually(lambda: len(sharded.documents("sh1")) == 120, what="all documents moved")
    for chunk in sharded.chunks():
        assert chunk["shard"] == ("sh1" if chunk["min"]["k"] == 0 else "sh0")


def test_a_manual_split_of_the_same_chunk(mini: MiniCluster, db: str, config: Client) -> None:
    """Whichever comes first: the chunks tile the key space, and later writes are split too."""
    sharded = Growing(mini, db, {"k": 1})
    assert sharded.split([{"k": 0}, {"k": 1000}])["ok"]
    for value in range(0, 200, 2):
        sharded.write(value)
        if value == 60:
            sharded.split([{"k": 31}], low={"k": 0}, high={"k": 1000})
    sharded.wait_chunks(5)
    chunks = sharded.chunks()
    assert all(low["max"] == high["min"] for low, high in pairwise(chunks))
    assert (chunks[0]["min"], chunks[-1]["max"]) == ({"k": MinKey()}, {"k": MaxKey()})
