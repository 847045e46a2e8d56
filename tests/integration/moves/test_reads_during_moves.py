"""Counts, groups and finds are right at every step of a move, including reads that have to wait for a step."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from itertools import product
from typing import Final

import pytest
from pymongo.database import Database
from pymongo.read_concern import ReadConcern

from tests.fail_points import FailPoint, fail_point
from tests.integration.sharded import LOWER, SPLIT_AT, UPPER, Document, Documents, shard_by_range
from tests.local_cluster import Client, RunningCluster
from tests.migration.moving import moving
from tests.sampling import many

DONOR: Final = f"{LOWER}.0.shardd"
RECIPIENT: Final = f"{UPPER}.0.shardd"

# In the order in which a move comes by; docs/migration.md says what each is.
UNTIL_COMMIT: Final = (
    *((DONOR, f"moveChunkHangAtStep{step}") for step in (1, 2, 3)),
    *((RECIPIENT, f"migrateThreadHangAtStep{step}") for step in (1, 2, 3, 4, 5)),
    (DONOR, "moveChunkHangAtStep4"),
)
CRITICAL: Final = (
    *((RECIPIENT, f"migrateThreadHangAtStep{step}") for step in (6, 7)),
    (DONOR, "moveChunkHangAtStep5"),
    (DONOR, "hangBeforeLeavingCriticalSection"),
)
"""Places at which writes, and some reads, wait until the critical section ends."""
AFTER_COMMIT: Final = (
    (DONOR, "moveChunkHangAtStep6"),
    (DONOR, "hangBeforeMakingCommitDecisionDurable"),
    (DONOR, "hangBeforeSendingCommitDecision"),
    (DONOR, "hangBeforeForgettingMigrationAfterCommitDecision"),
)
DELETION: Final = (
    (DONOR, "suspendRangeDeletion"),
    (DONOR, "hangBeforeDoingDeletion"),
    (DONOR, "hangAfterDoingDeletion"),
)

READ_SECONDS_MAX: Final = 60.0
MIDDLE: Final = SPLIT_AT // 2
LEVELS: Final = ("local", "majority")
GROUPS: Final = 3

Contents = dict[int, int]
"""The value of ``x`` for each ``key``."""


def counted(collection: Documents, *stages: Document) -> int:
    """Count the documents that a pipeline returns."""
    [result] = collection.aggregate([*stages, {"$count": "n"}])
    return int(result["n"])


def grouped(collection: Documents) -> list[tuple[int, int, int]]:
    """Return the number of documents in each group, and the sum of a field."""
    group = {"$group": {"_id": {"$mod": ["$key", GROUPS]}, "n": {"$sum": 1}, "x": {"$sum": "$x"}}}
    return sorted((each["_id"], each["n"], each["x"]) for each in collection.aggregate([group]))


def groups_of(contents: Contents) -> list[tuple[int, int, int]]:
    """Return the expected result of `grouped`."""
    groups = ([x for key, x in contents.items() if key % GROUPS == group] for group in range(GROUPS))
    return [(number, len(group), sum(group)) for number, group in enumerate(groups)]


READS: Final[dict[str, tuple[Callable[[Documents], object], Callable[[Contents], object]]]] = {
    "count": (lambda each: each.database.command("count", each.name, query={"x": {"$gte": 0}})["n"], len),
    "$count": (counted, len),
    "$group": (grouped, groups_of),
    "$group by key": (lambda each: counted(each, {"$group": {"_id": "$key"}}), len),
    "$unionWith": (lambda each: counted(each, {"$unionWith": each.name}), lambda contents: 2 * len(contents)),
    "find": (lambda each: sorted(found["key"] for found in each.find(batch_size=7)), sorted),
    "find sorted": (lambda each: [found["key"] for found in each.find(sort=[("key", -1)])][::-1], sorted),
    "find the range": (
        lambda each: sorted(found["key"] for found in each.find({"key": {"$gte": MIDDLE, "$lt": SPLIT_AT}})),
        lambda contents: sorted(key for key in contents if MIDDLE <= key < SPLIT_AT),
    ),
    "distinct": (lambda each: sorted(each.distinct("key")), sorted),
}


class Readers:
    """All reads at one step, through both routers and with each read concern, which take turns in `make test`."""

    def __init__(self, collections: list[Documents], pool: ThreadPoolExecutor) -> None:
        self._pool = pool
        self._collections = [
            each.with_options(read_concern=ReadConcern(level)) for each, level in product(collections, LEVELS)
        ]
        self._turn = 0

    def start(self, contents: Contents) -> list[tuple[str, Future[object], object]]:
        """Begin all reads; return each with its expected result."""
        count = len(self._collections)
        chosen = [self._collections[(self._turn + number) % count] for number in range(many(count, 1))]
        self._turn += 1
        return [
            (name, self._pool.submit(read, collection), expected(contents))
            for name, (read, expected) in READS.items()
            for collection in chosen
        ]


def check(reads: list[tuple[str, Future[object], object]], step: str) -> None:
    """Check that all reads return the expected results."""
    for name, found, expected in reads:
        assert found.result(READ_SECONDS_MAX) == expected, (name, step)


@pytest.fixture
def contents() -> Contents:
    """The contents of the collection: half of the lower shard's documents will move."""
    return {key: key for key in range(0, 2 * SPLIT_AT, 25)}


@pytest.fixture
def filled(database: Database[Document], contents: Contents) -> Documents:
    """A collection on both shards."""
    collection = shard_by_range(database)
    collection.insert_many({"_id": key, "key": key, "x": x} for key, x in contents.items())
    return collection


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    """Threads for operations that may have to wait."""
    with ThreadPoolExecutor(many(4, 1) * len(READS) * len(CRITICAL)) as threads:
        yield threads


def write(collection: Documents, contents: Contents, number: int) -> None:
    """Insert, change and delete a document in the range that moves."""
    inserted, changed = MIDDLE + 26 + number, MIDDLE + 25
    deleted = max(key for key in contents if changed < key < SPLIT_AT)
    collection.insert_one({"_id": inserted, "key": inserted, "x": number})
    collection.update_one({"key": changed}, {"$inc": {"x": 1}})
    collection.delete_one({"key": deleted})
    contents[inserted] = number
    contents[changed] += 1
    del contents[deleted]


def begin_reading(collection: Documents) -> Callable[[], list[int]]:
    """Open a cursor; returns what reads it to its end and returns all keys it has found."""
    cursor = collection.find(batch_size=3)
    first = next(cursor)
    return lambda: [each["key"] for each in (first, *cursor)]


def test_reads_at_every_step_of_a_move(
    cluster: RunningCluster,
    filled: Documents,
    contents: Contents,
    routers: tuple[Client, Client],
    pool: ThreadPoolExecutor,
) -> None:
    readers = Readers([router[filled.database.name][filled.name] for router in routers], pool)
    untouched = {key for key in contents if key < MIDDLE or key >= SPLIT_AT}
    waiting: list[tuple[str, Future[object], object]] = []
    older: list[Callable[[], list[int]]] = []
    bounds = {"min": {"key": MIDDLE}, "max": {"key": SPLIT_AT}}
    command = {"moveRange": filled.full_name, **bounds, "toShard": UPPER, "waitForDelete": True}
    with ExitStack() as stack:
        daemons = {name: stack.enter_context(cluster.direct(name)) for name in (DONOR, RECIPIENT)}
        places = (*UNTIL_COMMIT, *CRITICAL, *AFTER_COMMIT, *DELETION)
        points: list[FailPoint] = [stack.enter_context(fail_point(daemons[name], point)) for name, point in places]
        move = stack.enter_context(moving(cluster.address("router.0"), command))
        for number, (point, place) in enumerate(zip(points, places, strict=True)):
            point.wait_entered()
            if place in CRITICAL:
                waiting += readers.start(contents)
            else:
                write(filled, contents, number)
                check(readers.start(contents), point.name)
            if place in UNTIL_COMMIT:
                older.append(begin_reading(filled))
            if place == AFTER_COMMIT[-1]:
                # Deletions wait for the cursors that may still return documents of the range.
                for keys in [rest() for rest in older]:
                    assert len(keys) == len(set(keys))
                    assert untouched.issubset(keys)
            point.turn_off()
            if place == CRITICAL[-1]:
                check(waiting, "critical section")
        reply = move.wait()
    assert reply is not None
    assert reply["ok"], reply
    check(readers.start(contents), "after the move")
