"""Whole migrations between real shards, driven by the donor."""

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from pymongo.errors import OperationFailure

from shardwright.wire.error_codes import ErrorCode
from tests.integration.raw_client import raw_client
from tests.shardd.migration.donor.moving import (
    LOW,
    TOP,
    Move,
    changes,
    daemon,
    migrations_left,
    stopped_move,
    wait_finished,
)
from tests.shardd.mini_cluster import MiniCluster
from tests.shardd.router_stand_in import ShardedNamespace


class Writer:
    """Writes to a collection on the shard that owns the key, and records the expected documents.

    Attributes:
        model: the documents by ``_id``.
    """

    def __init__(self, sharded: ShardedNamespace, keys: range) -> None:
        self.model: dict[int, dict[str, Any]] = {}
        self._sharded, self._keys = sharded, keys
        self._random = random.Random(7)
        self._is_done = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Write until the block ends."""
        self._thread.start()
        try:
            yield
        finally:
            self._is_done.set()
            self._thread.join(30)
        assert not self._thread.is_alive()
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        try:
            while not self._is_done.is_set():
                self._write(self._random.choice(self._keys))
        except BaseException as failure:
            self._failure = failure

    def _write(self, key: int) -> None:
        collection = self._sharded.collection
        number = self._random.randrange(1_000_000)
        delete = {"delete": collection, "deletes": [{"q": {"a": key}, "limit": 0}]}
        document = {"_id": key, "a": key, "n": number}
        replace = {"update": collection, "updates": [{"q": {"a": key, "_id": key}, "u": document, "upsert": True}]}
        is_delete = number % 5 == 0
        while True:
            chunk = next(each for each in reversed(self._sharded.chunks()) if _at_least(key, each["min"]["a"]))
            reply = self._sharded.versioned(delete if is_delete else replace, chunk["shard"])
            if "writeErrors" not in reply and reply["ok"]:
                break
            assert reply["writeErrors"][0]["code"] == ErrorCode.StaleConfig, reply
        if is_delete:
            self.model.pop(key, None)
        else:
            self.model[key] = document


def _at_least(key: int, bound: object) -> bool:
    return not isinstance(bound, int) or key >= bound


def owned(sharded: ShardedNamespace) -> list[dict[str, Any]]:
    """Return the documents that both shards show, by ``_id``."""
    found = []
    for shard in ("sh0", "sh1"):
        reply = sharded.versioned({"find": sharded.collection, "batchSize": 100_000}, shard)
        found += reply["cursor"]["firstBatch"]
    return sorted(found, key=lambda each: each["_id"])


def test_a_range_moves_there_and_back_during_writes(mini: MiniCluster, ranged: ShardedNamespace) -> None:
    still = [{"_id": n, "a": n, "n": 0} for n in range(10, 20_010)]
    for begin in range(0, len(still), 5000):
        ranged.insert(*still[begin : begin + 5000])
    for shard in ("sh0", "sh1"):
        daemon(mini, shard).admin.command("setParameter", 1, orphanCleanupDelaySecs=0)
        daemon(mini, shard).admin.command("setParameter", 1, verifyMigrations=True)
    writer = Writer(ranged, range(10, 20_010))
    writer.model = {document["_id"]: document for document in still}
    with writer.writing():
        for to in ("sh1", "sh0", "sh1"):
            Move(ranged, LOW, TOP, to).wait()
            assert ranged.chunks()[-1]["shard"] == to
            assert migrations_left(mini, "sh0") == migrations_left(mini, "sh1") == []
    assert owned(ranged) == sorted(writer.model.values(), key=lambda each: each["_id"])
    assert [each["note"] for each in changes(ranged, "moveChunk.from")[-3:]] == ["success"] * 3


def test_a_request_does_not_wait_for_a_long_completion(mini: MiniCluster, ranged: ShardedNamespace) -> None:
    ranged.insert({"_id": 1, "a": 11})
    with stopped_move(ranged, "hangBeforeSendingCommitDecision") as move:
        move.wait()
        (left,) = migrations_left(mini)
        assert (left["nss"], left["decision"]) == (ranged.namespace, "committed")
        assert ranged.documents("sh1") == [{"_id": 1, "a": 11}]
    wait_finished(mini)


def test_the_same_request_joins_and_another_is_refused(mini: MiniCluster, ranged: ShardedNamespace) -> None:
    ranged.insert({"_id": 1, "a": 11})
    before = len(changes(ranged, "moveChunk.start"))
    order: dict[str, Any] = {"_shardsvrMoveRange": ranged.namespace, "toShard": "sh1", "min": LOW, "max": TOP}
    order |= {"epoch": ranged.entry()["lastmodEpoch"], "fromShard": "sh0", "maxChunkSizeBytes": 1 << 27}
    with raw_client(mini.shards["sh0"].members[0].address) as second:
        with stopped_move(ranged, "moveChunkHangAtStep3") as first:
            # It arrived before the other request that is answered below, so it has joined the first one.
            second.send_command(order)
            other = ranged.run({**order, "min": {"a": 12}}, db="admin")
            assert other["code"] == ErrorCode.ConflictingOperationInProgress
            assert "currently donating chunk [{ a: 10 }, { a: MaxKey })" in other["errmsg"]
            assert not first.is_over
        first.wait()
        assert second.receive_reply()["ok"] == 1.0
    assert len(changes(ranged, "moveChunk.start")) == before + 1


def test_only_the_lower_bound_is_given(mini: MiniCluster, ranged: ShardedNamespace) -> None:
    ranged.insert(*({"a": n, "padding": "x" * 10_000} for n in range(10, 510)))
    order: dict[str, Any] = {
        "_shardsvrMoveRange": ranged.namespace,
        "toShard": "sh1",
        "min": LOW,
        "maxChunkSizeBytes": 1 << 20,
    }
    order |= {"epoch": ranged.entry()["lastmodEpoch"], "fromShard": "sh0", "maxChunkSizeBytes": 1 << 20}
    assert ranged.run(order, db="admin") == {"ok": 1.0}
    moved = next(chunk for chunk in ranged.chunks() if chunk["min"] == LOW)
    assert moved["shard"] == "sh1"
    assert 50 < moved["max"]["a"] < 160


def test_a_range_that_is_too_big_is_not_moved(mini: MiniCluster, ranged: ShardedNamespace) -> None:
    ranged.insert(*({"a": n, "padding": "x" * 10_000} for n in range(10, 510)))
    order: dict[str, Any] = {"_shardsvrMoveRange": ranged.namespace, "toShard": "sh1", "min": LOW, "max": TOP}
    order |= {"maxChunkSizeBytes": 1 << 20, "epoch": ranged.entry()["lastmodEpoch"], "fromShard": "sh0"}
    refused = ranged.run(order, db="admin")
    assert refused["code"] == ErrorCode.ChunkTooBig
    assert refused["errmsg"].startswith("Cannot move chunk: the maximum number of documents for a chunk is ")
    assert ranged.run({**order, "forceJumbo": 1}, db="admin") == {"ok": 1.0}


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"min": {"a": 5}}, ErrorCode.IncompatibleShardingMetadata),
        ({"toShard": "sh0"}, ErrorCode.InvalidOptions),
        ({"toShard": "nowhere"}, ErrorCode.ShardNotFound),
        ({"max": {"a": 9}}, ErrorCode.BadValue),
    ],
)
def test_invalid_moves_are_refused(
    mini: MiniCluster, ranged: ShardedNamespace, change: dict[str, Any], code: int
) -> None:
    order: dict[str, Any] = {
        "_shardsvrMoveRange": ranged.namespace,
        "toShard": "sh1",
        "min": LOW,
        "max": TOP,
        "fromShard": "sh0",
    }
    order |= {"epoch": ranged.entry()["lastmodEpoch"]}
    assert ranged.run({**order, **change}, db="admin")["code"] == code
    assert migrations_left(mini) == []
    assert changes(ranged, "moveChunk.from")[-1]["note"] == "aborted"


def test_wait_for_delete(mini: MiniCluster, ranged: ShardedNamespace) -> None:
    daemon(mini).admin.command("setParameter", 1, orphanCleanupDelaySecs=900)
    ranged.insert(*({"a": n} for n in range(10, 110)))
    order: dict[str, Any] = {
        "_shardsvrMoveRange": ranged.namespace,
        "toShard": "sh1",
        "min": LOW,
        "max": TOP,
        "waitForDelete": True,
    }
    order |= {"epoch": ranged.entry()["lastmodEpoch"], "fromShard": "sh0"}
    assert ranged.run(order, db="admin") == {"ok": 1.0}
    with mini.shards["sh0"].members[0].mongod_client() as mongod:
        assert mongod[ranged.db][ranged.collection].count_documents({}) == 0


def test_current_op_shows_the_migration(mini: MiniCluster, ranged: ShardedNamespace) -> None:
    ranged.insert(*({"a": n} for n in range(10, 110)))
    with stopped_move(ranged, "moveChunkHangAtStep4") as move:
        [shown] = daemon(mini).admin.command("currentOp", desc="MoveChunk")["inprog"]
        received = list(
            daemon(mini, "sh1").admin.aggregate([{"$currentOp": {}}, {"$match": {"desc": "migrateThread"}}])
        )
    move.wait()
    assert (shown["type"], shown["ns"], shown["msg"]) == ("op", ranged.namespace, "step 4 of 6")
    assert shown["progress"] == {"done": 100, "total": 100}
    assert shown["command"]["toShard"] == "sh1"
    assert shown["migration"]["state"] == "steady"
    assert [each["command"]["sessionId"] for each in received] == [shown["command"]["sessionId"]]
    assert received[0]["migration"]["documentsCloned"] == 100


def test_a_split_waits_for_the_migration(ranged: ShardedNamespace) -> None:
    with stopped_move(ranged, "moveChunkHangAtStep3", high={"a": 20}) as move:
        entry = ranged.entry()
        split = {"splitChunk": ranged.namespace, "from": "sh0", "keyPattern": ranged.key, **_bounds(ranged)}
        split |= {"splitKeys": [{"a": 15}], "epoch": entry["lastmodEpoch"], "timestamp": entry["timestamp"]}
        waiting = ranged.run({**split, "maxTimeMS": 500}, db="admin")
        assert waiting["code"] == ErrorCode.MaxTimeMSExpired
    move.wait()
    with pytest.raises(OperationFailure):
        Move(ranged, LOW, {"a": 30}, "sh0").wait()


def _bounds(sharded: ShardedNamespace) -> dict[str, Any]:
    last = sharded.chunks()[-1]
    return {"min": last["min"], "max": last["max"]}
