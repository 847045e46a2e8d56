"""Migrations between real shards that lose a daemon in the middle of the clone, and are resumed there."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import pytest

from tests.fail_points import FailPoint, fail_point
from tests.integration.waiting import eventually
from tests.shardd.migration.donor.moving import LOW, TOP, Move, daemon, end, log_lines, migrations_left, wait_finished
from tests.shardd.mini_cluster import Member, MiniCluster
from tests.shardd.router_stand_in import ShardedNamespace

Document = dict[str, Any]

TOTAL: Final = 7_000
"""Documents of 4 kB make a batch of some 2,000, and pieces of 1,000."""

FIRST: Final = 10
LAST: Final = FIRST + TOTAL - 1

INSERTS_BEFORE_HOLD: Final = TOTAL * 4_000 // (1 << 18) // 2
"""mongod inserts 256 kB at a time; half of the inserts pass."""

WRITERS: Final = 2


@pytest.fixture
def filled(ranged: ShardedNamespace) -> ShardedNamespace:
    """The collection with several batches of documents in the range to move."""
    for begin in range(FIRST, FIRST + TOTAL, 1000):
        ranged.insert(*({"_id": n, "a": n, "padding": "x" * 4000} for n in range(begin, begin + 1000)))
    return ranged


@dataclass
class Halfway:
    """A migration whose recipient has written part of the clone, and cannot write the rest.

    Attributes:
        sharded: the collection.
        move: the move of its range.
        hold: keeps the recipient's mongod from inserting.
        checkpoint: one of the recipient's checkpoints, possibly not its last one.
    """

    sharded: ShardedNamespace
    move: Move
    hold: FailPoint
    checkpoint: Document

    def record_ids(self) -> dict[int, int]:
        """The record id on the recipient's mongod of each document that the checkpoint covers."""
        covered = {"_id": {"$gt": FIRST + 1, "$lt": self.checkpoint["clonedUpTo"]["a"]}}
        with recipient_of(self.sharded).mongod_client() as mongod:
            found = mongod[self.sharded.db][self.sharded.collection].find(covered, {"_id": 1}, show_record_id=True)
            return {document["_id"]: document["$recordId"] for document in found}


@contextmanager
def halfway(sharded: ShardedNamespace) -> Iterator[Halfway]:
    """A move that is held in the middle of the clone until ``hold`` is turned off, or the block ends."""
    mode, nss = {"skip": INSERTS_BEFORE_HOLD}, sharded.namespace
    query = {"nss": nss, "clonedUpTo": {"$ne": None}}
    with (
        recipient_of(sharded).mongod_client() as mongod,
        fail_point(mongod, "hangDuringBatchInsert", mode, nss=nss) as hold,
    ):
        move = Move(sharded, LOW, TOP, "sh1")
        hold.wait_entered(WRITERS)
        saved = mongod.config.migrationCheckpoints
        checkpoint = eventually(lambda: saved.find_one(query), what="there is a checkpoint")
        yield Halfway(sharded, move, hold, checkpoint)


def recipient_of(sharded: ShardedNamespace) -> Member:
    return sharded.cluster.shards["sh1"].members[0]


def visible(sharded: ShardedNamespace, shard: str) -> list[Document]:
    """The documents that a shard returns, without the padding."""
    find = {"find": sharded.collection, "sort": {"_id": 1}, "projection": {"padding": 0}, "batchSize": TOTAL + 1}
    return list(sharded.versioned(find, shard)["cursor"]["firstBatch"])


def change_documents(sharded: ShardedNamespace) -> list[Document]:
    """Write to documents that have been cloned, and to some that have not; returns what must be visible."""
    expected = {document["_id"]: document for document in visible(sharded, "sh0")}
    assert len(expected) == TOTAL
    for changed, deleted in ((FIRST, FIRST + 1), (LAST, LAST - 1)):
        update = {"q": {"a": changed}, "u": {"$set": {"is_changed": True}}}
        assert sharded.versioned({"update": sharded.collection, "updates": [update]})["n"] == 1
        expected[changed]["is_changed"] = True
        deletion = {"q": {"a": deleted}, "limit": 1}
        assert sharded.versioned({"delete": sharded.collection, "deletes": [deletion]})["n"] == 1
        del expected[deleted]
    return list(expected.values())


def assert_resumed(clone: Halfway, kept: dict[int, int]) -> None:
    """The second attempt, which has just caught up, has cloned what the first one had not, and nothing else."""
    sharded, before = clone.sharded, clone.checkpoint
    cluster = sharded.cluster
    donor, recipient = shown(cluster, "sh0", "MoveChunk"), shown(cluster, "sh1", "migrateThread")
    with recipient_of(sharded).mongod_client() as mongod:
        [checkpoint] = mongod.config.migrationCheckpoints.find({"nss": sharded.namespace})
    first, second = checkpoint["attempts"]
    assert 0 < before["counts"]["cloned"] <= first["documents"] < TOTAL
    assert first["sessionId"] == before["attempts"][0]["sessionId"] != second["sessionId"]
    assert (donor["attempt"], recipient["attempt"]) == (2, 2)
    assert recipient["documentsCloned"] == first["documents"] + donor["documentsCloned"]
    # Documents that were deleted meanwhile did not need to be cloned.
    assert TOTAL - 2 <= recipient["documentsCloned"] <= TOTAL
    [resuming] = log_lines(cluster, "sh0", "Resuming a migration", sharded.namespace)
    assert resuming["session"] == second["sessionId"]
    assert clone.record_ids() == kept
    assert len(kept) >= 1


def shown(cluster: MiniCluster, shard: str, description: str) -> Document:
    """The progress of its migration in a shard's ``currentOp``."""
    [found] = daemon(cluster, shard).admin.command("currentOp", desc=description)["inprog"]
    return dict(found["migration"])


def test_a_killed_recipient_resumes_from_its_checkpoint(mini: MiniCluster, filled: ShardedNamespace) -> None:
    recipient = mini.shards["sh1"].members[0]
    with fail_point(daemon(mini), "moveChunkHangAtStep4") as caught_up:
        with halfway(filled) as clone:
            recipient.daemon.stop(signal.SIGKILL)
            kept = clone.record_ids()
        # The recipient's mongod still has an open transaction, which has to be aborted.
        expected = change_documents(filled)
        recipient.daemon.start()
        caught_up.wait_entered()
        assert_resumed(clone, kept)
    clone.move.wait()
    assert filled.chunks()[-1]["shard"] == "sh1"
    assert visible(filled, "sh1") == expected
    assert migrations_left(mini) == []


def test_a_killed_donor_resumes_from_the_checkpoint(mini: MiniCluster, filled: ShardedNamespace) -> None:
    donor = mini.shards["sh0"].members[0]
    with halfway(filled) as clone:
        kept = clone.record_ids()
        donor.daemon.stop(signal.SIGKILL)
        donor.daemon.start()
        donor.wait_ready()
        with fail_point(daemon(mini), "moveChunkHangAtStep4") as caught_up:
            expected = change_documents(filled)
            clone.hold.turn_off()
            caught_up.wait_entered()
            assert_resumed(clone, kept)
        end(clone.move)
        wait_finished(mini)
    assert filled.chunks()[-1]["shard"] == "sh1"
    assert visible(filled, "sh1") == expected
