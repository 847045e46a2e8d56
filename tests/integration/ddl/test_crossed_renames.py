"""Renames that meet: of one collection to two names, of two to one, there and back, one behind the other."""

import random
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import count, permutations
from threading import Barrier, Event
from typing import Final

import pytest
from pymongo.database import Database
from pymongo.errors import OperationFailure

from shardwright.wire.error_codes import ErrorCode
from tests.fail_points import fail_point
from tests.integration.sharded import SPLIT_AT, Document, shard_by_range
from tests.integration.waiting import eventually
from tests.local_cluster import Client, RunningCluster
from tests.sampling import many

NAMES: Final = ("a", "b", "c")

Rename = tuple[str, str]
"""The name before it and after it."""

PAIRS: Final[Mapping[str, tuple[Rename, Rename]]] = {
    "there and back": (("a", "b"), ("b", "a")),
    "one behind the other": (("a", "b"), ("b", "c")),
    "one to two names": (("a", "b"), ("a", "c")),
    "two to one name": (("a", "b"), ("c", "b")),
    "equal": (("a", "b"), ("a", "b")),
}

REFUSALS: Final = frozenset(
    {ErrorCode.NamespaceNotFound, ErrorCode.NamespaceExists, ErrorCode.ConflictingOperationInProgress}
)


def renamed(client: Client, db: str, rename: Rename, *, drop_target: bool) -> int:
    """Rename a collection; returns the code of the error, 0 if there is none."""
    source, target = (f"{db}.{name}" for name in rename)
    try:
        client.admin.command("renameCollection", source, to=target, dropTarget=drop_target)
    except OperationFailure as failure:
        return failure.code or ErrorCode.InternalError
    return 0


def outcomes(pair: tuple[Rename, Rename]) -> list[dict[str, str]]:
    """Return the possible final names, with each collection identified by its first name."""
    found = []
    # A rename that joins an equal one, or is refused because of an unequal one of the same source, does nothing.
    for order in (*permutations(pair), pair[:1], pair[1:]):
        state = {name: name for name in NAMES}
        for source, target in order:
            if source in state:
                state[target] = state.pop(source)
        found.append(state)
    return found


@pytest.mark.matrix(share=0.5)
@pytest.mark.parametrize("sharded", ["abc", "a", "b"])
@pytest.mark.parametrize("pair", PAIRS)
def test_two_renames_at_once(
    routers: tuple[Client, Client], database: Database[Document], pair: str, sharded: str
) -> None:
    for name in NAMES:
        if name in sharded:
            shard_by_range(database, name)
        database[name].insert_many({"key": key, "first": name} for key in (0, SPLIT_AT, SPLIT_AT + 1))
        for router in routers:
            assert router[database.name][name].count_documents({}) == 3
    start = Barrier(2)

    def run(client: Client, rename: Rename) -> int:
        start.wait(30)
        return renamed(client, database.name, rename, drop_target=True)

    with ThreadPoolExecutor(2) as pool:
        codes = [
            each.result(120) for each in [pool.submit(run, *each) for each in zip(routers, PAIRS[pair], strict=True)]
        ]
    assert 0 in codes
    assert set(codes) <= REFUSALS | {0}
    for router in routers:
        found = {name: router[database.name][name].distinct("first") for name in NAMES}
        left = {name: first[0] for name, first in found.items() if len(first) == 1}
        assert all(len(first) <= 1 for first in found.values())
        assert left in outcomes(PAIRS[pair]), (codes, left)
        assert all(router[database.name][name].count_documents({}) == 3 for name in left)
    assert database.command("checkMetadataConsistency", 1, checkIndexes=True)["cursor"]["firstBatch"] == []


def test_renames_lose_nothing(routers: tuple[Client, Client], database: Database[Document]) -> None:
    """Two clients rename at random, and never over a collection, while two others write under all the names."""
    shard_by_range(database, "a")
    stop, numbers, written = Event(), count(), list[int]()
    rounds = many(60, 12)

    def write(client: Client, seed: int) -> None:
        chance = random.Random(seed)
        while not stop.is_set():
            number = next(numbers)
            client[database.name][chance.choice(NAMES)].insert_one({"_id": number, "key": number * 7 % 1000})
            written.append(number)

    def rename(client: Client, seed: int) -> list[int]:
        chance = random.Random(seed)
        pairs = [*permutations((*NAMES, "d"), 2)]
        return [renamed(client, database.name, chance.choice(pairs), drop_target=False) for _ in range(rounds)]

    with ThreadPoolExecutor(4) as pool:
        writing = [pool.submit(write, router, seed) for seed, router in enumerate(routers)]
        try:
            eventually(lambda: len(written) > 20)
            renaming = [pool.submit(rename, router, seed) for seed, router in enumerate(routers, 2)]
            codes = [code for each in renaming for code in each.result(240)]
        finally:
            stop.set()
        for each in writing:
            each.result(60)
    assert set(codes) <= REFUSALS | {0}
    for router in routers:
        found = [each["_id"] for name in (*NAMES, "d") for each in router[database.name][name].find({}, {"_id": 1})]
        assert sorted(found) == sorted(written)
    assert database.command("checkMetadataConsistency", 1, checkIndexes=True)["cursor"]["firstBatch"] == []


def test_a_collection_that_is_created_in_the_way_is_not_replaced(
    cluster: RunningCluster, routers: tuple[Client, Client], database: Database[Document]
) -> None:
    """It is created after the coordinator has looked whether there is one."""
    source = shard_by_range(database, "a")
    source.insert_many({"key": key} for key in (0, SPLIT_AT))
    with (
        cluster.direct("shard0.0.shardd") as daemon,
        ThreadPoolExecutor(1) as pool,
        fail_point(daemon, "hangInDDLCoordinator", operationType="renameCollection", at="blockCRUDAndRename") as point,
    ):
        renaming = pool.submit(renamed, routers[0], database.name, ("a", "b"), drop_target=False)
        point.wait_entered()
        routers[1][database.name]["b"].insert_one({"_id": "acknowledged"})
        point.turn_off()
        assert renaming.result(60) == ErrorCode.NamespaceExists
    for router in routers:
        assert list(router[database.name]["b"].find()) == [{"_id": "acknowledged"}]
        assert router[database.name]["a"].count_documents({}) == 2
    routers[0].admin.command("moveChunk", source.full_name, find={"key": 0}, to="shard1")
    database["b"].drop()
    assert renamed(routers[1], database.name, ("a", "b"), drop_target=False) == 0
    assert database["b"].count_documents({}) == 2
