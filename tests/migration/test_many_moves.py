"""Many consecutive moves under a load of writes, and moves as users request them."""

import random
import time
from typing import Any, Final

import pytest
from bson.max_key import MaxKey
from bson.min_key import MinKey

from shardwright.mongosh_compat.runner import run_code
from tests.integration.sharded import LOWER, UPPER, changes, chunks, placement
from tests.migration.conftest import SPLITS
from tests.migration.fault_cluster import FaultCluster
from tests.migration.invariants import check_collection
from tests.migration.writers import KEYS, writing
from tests.sampling import many

MOVES: Final = many(200, 25)

Document = dict[str, Any]


def test_many_moves_in_a_row_under_writes(cluster: FaultCluster, namespace: str) -> None:
    admin = cluster.router().admin
    # The seed does not matter for the outcome: any order of moves must work.
    choice = random.Random(MOVES)
    for bound in range(50, KEYS, 50):
        if bound not in SPLITS:
            admin.command("split", namespace, middle={"key": bound})
    began = time.monotonic()
    with writing(namespace, cluster.router_addresses, kept_share=0.02) as writers:
        for number in range(MOVES):
            chunk = choice.choice(chunks(cluster.router(), namespace))
            to = LOWER if chunk["shard"] == UPPER else UPPER
            router = cluster.router(number % 2)
            router.admin.command("moveChunk", namespace, bounds=[chunk["min"], chunk["max"]], to=to)
        took = time.monotonic() - began
        writers.wait_for_progress()
    print(f"{MOVES} moves in {took:.1f} s beside {writers.acknowledged} writes")
    writers.retry_kept()
    check_collection(cluster, namespace, writers.model)
    assert len(changes(cluster.router(), namespace, "moveChunk.commit")) >= MOVES


def test_mongosh_moves_a_chunk_with_documents(cluster: FaultCluster, namespace: str) -> None:
    database, _, name = namespace.partition(".")
    things = cluster.router()[database][name]
    things.insert_many({"_id": n, "key": n} for n in range(KEYS))
    code = f"""
        assert.strictEqual(sh.moveChunk("{namespace}", {{key: {SPLITS[0]}}}, "{UPPER}").ok, 1);
        assert.strictEqual(sh.moveRange("{namespace}", "{UPPER}", {{key: 100}}, {{key: 200}}).ok, 1);
        assert.strictEqual(db.getSiblingDB("{database}").{name}.countDocuments(), {KEYS});
    """
    run_code(cluster.running.client_uri(), code).check()
    assert placement(cluster.router(), namespace) == [LOWER, UPPER, LOWER, UPPER, UPPER]
    check_collection(cluster, namespace, {n: {"_id": n, "key": n} for n in range(KEYS)})


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ({"moveChunk": "", "find": {"key": 310}, "to": UPPER}, [LOWER, UPPER, UPPER]),
        ({"moveChunk": "", "bounds": [{"key": 300}, {"key": 600}], "to": UPPER}, [LOWER, UPPER, UPPER]),
        ({"moveChunk": "", "find": {"key": 310}, "to": UPPER, "_waitForDelete": True}, [LOWER, UPPER, UPPER]),
        ({"moveChunk": "", "find": {"key": 310}, "to": UPPER, "waitForDelete": True}, [LOWER, UPPER, UPPER]),
        ({"moveChunk": "", "find": {"key": 310}, "to": UPPER, "_secondaryThrottle": True}, [LOWER, UPPER, UPPER]),
        (
            {
                **{"moveChunk": "", "find": {"key": 310}, "to": UPPER, "secondaryThrottle": True},
                "writeConcern": {"w": "majority"},
            },
            [LOWER, UPPER, UPPER],
        ),
        ({"moveChunk": "", "find": {"key": 310}, "to": UPPER, "forceJumbo": True}, [LOWER, UPPER, UPPER]),
        ({"moveRange": "", "min": {"key": 300}, "max": {"key": 600}, "toShard": UPPER}, [LOWER, UPPER, UPPER]),
        ({"moveRange": "", "min": {"key": 300}, "toShard": UPPER}, [LOWER, UPPER, UPPER]),
        ({"moveRange": "", "max": {"key": 600}, "toShard": UPPER}, [LOWER, UPPER, UPPER]),
        (
            {"moveRange": "", "min": {"key": 400}, "max": {"key": 500}, "toShard": UPPER},
            [LOWER, LOWER, UPPER, LOWER, UPPER],
        ),
        (
            {"moveRange": "", "min": {"key": 300}, "max": {"key": 400}, "toShard": UPPER, "waitForDelete": True},
            [LOWER, UPPER, LOWER, UPPER],
        ),
        (
            {"moveRange": "", "min": {"key": MinKey()}, "max": {"key": 300}, "toShard": UPPER, "forceJumbo": True},
            [UPPER, LOWER, UPPER],
        ),
        ({"moveRange": "", "min": {"key": 600}, "max": {"key": MaxKey()}, "toShard": LOWER}, [LOWER, LOWER, LOWER]),
        (
            {
                **{"moveRange": "", "min": {"key": 300}, "toShard": UPPER, "secondaryThrottle": True},
                "writeConcern": {"w": 1},
            },
            [LOWER, UPPER, UPPER],
        ),
        ({"moveChunk": "", "find": {"key": 310}, "to": LOWER}, [LOWER, LOWER, UPPER]),
    ],
    ids=str,
)
def test_options(cluster: FaultCluster, namespace: str, command: Document, expected: list[str]) -> None:
    database, _, name = namespace.partition(".")
    things = cluster.router()[database][name]
    things.insert_many({"_id": n, "key": n} for n in range(KEYS))
    cluster.router(1).admin.command({**command, next(iter(command)): namespace})
    assert placement(cluster.router(), namespace) == expected
    if command.get("waitForDelete") or command.get("_waitForDelete"):
        lower = cluster.client("shard0.0.mongod")
        assert not list(lower.config.rangeDeletions.find())
        assert lower[database][name].count_documents({"key": {"$gte": 300, "$lt": 400}}) == 0
    check_collection(cluster, namespace, {n: {"_id": n, "key": n} for n in range(KEYS)})


def test_range_with_only_a_lower_bound_fits_the_chunk_size(cluster: FaultCluster, namespace: str) -> None:
    database, _, name = namespace.partition(".")
    things = cluster.router()[database][name]
    text = "x" * 10_000
    things.insert_many({"_id": n, "key": 300 + n % 300, "text": text} for n in range(600))
    entries = cluster.client("config.0.configd").config
    entries.collections.update_one({"_id": namespace}, {"$set": {"maxChunkSizeBytes": 2 * 1024 * 1024}})
    cluster.router().admin.command("moveRange", namespace, min={"key": 300}, toShard=UPPER)
    moved = cluster.client("shard1.0.mongod")[database][name].count_documents({})
    assert 100 <= moved <= 220, moved
    assert placement(cluster.router(), namespace) == [LOWER, UPPER, LOWER, UPPER]
