"""Random changes of collections beside random writes and moves, compared with a model of the collections.

One task makes the changes and writes, so that it knows what is in each collection; others move chunks and write to a
collection that is not changed. Afterwards ``checkMetadataConsistency`` finds nothing.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import count
from random import Random
from threading import Event
from typing import Any, Final

import pytest
from pymongo.errors import OperationFailure

from shardwright.wire.error_codes import ErrorCode
from tests.integration.sharded import LOWER, UPPER
from tests.local_cluster import Client

NAMES: Final = ("x", "y", "z")
STABLE: Final = "stable"
KEYS: Final = 40

NO_SPLIT: Final = (ErrorCode.InvalidOptions, ErrorCode.ConflictingOperationInProgress, ErrorCode.LockBusy)
"""A split is refused at what is a bound already, and while the chunk moves."""

_numbers = count(1)


class Model:
    """The collections of one database as they should be, changed through two routers in turn.

    Args:
        routers: clients of the routers.
        random: makes all choices.
    """

    def __init__(self, routers: tuple[Client, Client], random: Random) -> None:
        self.routers, self.random = routers, random
        self.db = f"random_ddl_{next(_numbers)}"
        self.documents: dict[str, dict[int, dict[str, Any]]] = {}
        self.keys: dict[str, tuple[str, ...]] = {}
        self._ids = count(1)
        routers[0].admin.command("enableSharding", self.db, primaryShard=LOWER)
        routers[0].admin.command("shardCollection", f"{self.db}.{STABLE}", key={"a": 1})

    @property
    def router(self) -> Client:
        """One of the routers."""
        return self.random.choice(self.routers)

    def step(self) -> None:
        """Make one random change that is possible now, or write."""
        kinds: list[Callable[[], None]] = [self.write, self.write, self.write, self.delete, self.shard, self.split]
        kinds += [self.rename, self.drop, self.refine, self.modify, self.index]
        self.random.choice(kinds)()

    def check(self) -> None:
        """Compare every collection through both routers."""
        for router in self.routers:
            for name in NAMES:
                expected = sorted(self.documents.get(name, {}).values(), key=lambda each: each["_id"])
                assert sorted(router[self.db][name].find(), key=lambda each: each["_id"]) == expected, name

    # Writes

    def write(self) -> None:
        name, number = self.random.choice(NAMES), next(self._ids)
        document = {"_id": number, "a": self.random.randrange(KEYS), "b": self.random.randrange(3)}
        self.router[self.db][name].insert_one(document)
        self.documents.setdefault(name, {})[number] = document

    def delete(self) -> None:
        name, a = self.random.choice(NAMES), self.random.randrange(KEYS)
        self.router[self.db][name].delete_many({"a": a})
        of_name = self.documents.get(name, {})
        for number in [number for number, document in of_name.items() if document["a"] == a]:
            del of_name[number]

    # Changes

    def shard(self) -> None:
        name = self.random.choice(NAMES)
        if name in self.keys:
            return
        if name in self.documents:
            self.router[self.db][name].create_index("a")
        self.router.admin.command("shardCollection", f"{self.db}.{name}", key={"a": 1})
        self.keys[name] = ("a",)
        self.documents.setdefault(name, {})

    def split(self) -> None:
        name = self.random.choice(NAMES)
        middle = {"a": self.random.randrange(KEYS), "b": self.random.randrange(3)}
        if name in self.keys:
            point = {field: middle[field] for field in self.keys[name]}
            try:
                self.router.admin.command("split", f"{self.db}.{name}", middle=point)
            except OperationFailure as failure:
                if failure.code not in NO_SPLIT:
                    raise

    def rename(self) -> None:
        source, target = self.random.sample(NAMES, 2)
        if source not in self.documents:
            return
        command = {"renameCollection": f"{self.db}.{source}", "to": f"{self.db}.{target}", "dropTarget": True}
        self.router.admin.command(command)
        self.documents[target] = self.documents.pop(source)
        self.keys.pop(target, None)
        if source in self.keys:
            self.keys[target] = self.keys.pop(source)

    def drop(self) -> None:
        name = self.random.choice(NAMES)
        self.router[self.db].drop_collection(name)
        self.documents.pop(name, None)
        self.keys.pop(name, None)

    def refine(self) -> None:
        name = self.random.choice(NAMES)
        if self.keys.get(name) != ("a",):
            return
        self.router[self.db][name].create_index([("a", 1), ("b", 1)])
        self.router.admin.command("refineCollectionShardKey", f"{self.db}.{name}", key={"a": 1, "b": 1})
        self.keys[name] = ("a", "b")

    def modify(self) -> None:
        name = self.random.choice(NAMES)
        if name in self.documents:
            self.router[self.db].command("collMod", name, validationLevel=self.random.choice(["moderate", "strict"]))

    def index(self) -> None:
        name = self.random.choice(NAMES)
        if name in self.documents:
            self.router[self.db][name].create_index("b")


@contextmanager
def beside(*tasks: Callable[[Event], None]) -> Iterator[None]:
    """Run tasks during the block; they end soon after the event is set."""
    stop = Event()
    with ThreadPoolExecutor(len(tasks)) as pool:
        running = [pool.submit(task, stop) for task in tasks]
        try:
            yield
        finally:
            stop.set()
    for each in running:
        each.result()


def move_chunks(client: Client, db: str, random: Random, stop: Event) -> None:
    """Move random chunks of whatever is sharded; a move that a change gets in the way of fails."""
    while not stop.is_set():
        entries = list(client.config["collections"].find({"_id": {"$regex": f"^{db}\\."}}))
        if not entries:
            continue
        entry = random.choice(entries)
        chunks = list(client.config.chunks.find({"uuid": entry["uuid"]}))
        if not chunks:
            continue
        chunk = random.choice(chunks)
        to = UPPER if chunk["shard"] == LOWER else LOWER
        try:
            client.admin.command("moveChunk", entry["_id"], bounds=[chunk["min"], chunk["max"]], to=to)
        except OperationFailure as failure:
            if failure.code == ErrorCode.InternalError:
                raise


def write_stable(client: Client, db: str, written: list[int], stop: Event) -> None:
    """Write to a collection of the same database that nobody changes."""
    while not stop.is_set():
        number = len(written)
        client[db][STABLE].insert_one({"_id": number, "a": number % KEYS})
        written.append(number)


def run(routers: tuple[Client, Client], seed: int, steps: int) -> None:
    random = Random(seed)
    model, written = Model(routers, random), list[int]()
    with beside(
        lambda stop: move_chunks(routers[0], model.db, Random(seed + 1), stop),
        lambda stop: write_stable(routers[1], model.db, written, stop),
    ):
        for number in range(steps):
            model.step()
            if number % 10 == 9:
                model.check()
    model.check()
    assert sorted(each["_id"] for each in routers[0][model.db][STABLE].find()) == written
    found = routers[0][model.db].command("checkMetadataConsistency", 1, checkIndexes=True)["cursor"]["firstBatch"]
    assert found == []
    routers[0].drop_database(model.db)


def test_random_changes(routers: tuple[Client, Client]) -> None:
    run(routers, seed=1, steps=40)


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(2, 12))
def test_many_random_changes(routers: tuple[Client, Client], seed: int) -> None:
    run(routers, seed, steps=400)
