"""Chunks, shard keys and primary shards of the source change while it is copied and followed."""

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest
from bson import encode
from pymongo.errors import OperationFailure, PyMongoError

from tests.sync.conftest import ends_of
from tests.sync.moments import check_moment, random_moments
from tests.sync.running import Client, Ends, SyncProcess, contents, run_sync
from tests.sync.surviving import SLOW_COPY, copied
from tests.sync.writers import DATABASE, passes, prepare, writing

NS: Final = f"{DATABASE}.orders"
REGIONS: Final = "bcdhij"
NUMBERS: Final = 2000
MIDDLE: Final = "f"
PAUSE_SECONDS: Final = 0.02
PASSED_OVER: Final = frozenset({117, 46, 96, 262, 11601})
"""ConflictingOperationInProgress and LockBusy: the collection is being changed, or another chunk is moving.
OperationFailed and ExceededTimeLimit: a genuine recipient has waited ten seconds for the deletion of a range that it
gave away. Interrupted: an index was built, which aborts a move."""


class Mover:
    """Threads that write to a sharded collection, or move its chunks.

    Attributes:
        moves: how many chunks were moved.
    """

    def __init__(self, client: Client, seed: int, *, moves: bool, writes: bool) -> None:
        self.moves = 0
        self._client, self._random = client, random.Random(seed)
        self._stop = threading.Event()
        self._faults: list[BaseException] = []
        steps = [step for step, is_wanted in ((self._move, moves), (self._write, writes)) if is_wanted]
        self._threads = [threading.Thread(target=self._run, args=(each,)) for each in steps]
        for each in self._threads:
            each.start()

    @property
    def has_failed(self) -> bool:
        """Whether a move or a write has ended a thread."""
        return bool(self._faults)

    def stop(self) -> None:
        """Stop the threads after their moves and writes."""
        self._stop.set()
        for each in self._threads:
            each.join()
        assert not self._faults, self._faults

    def _run(self, step: Callable[[], None]) -> None:
        while not self._stop.is_set():
            try:
                step()
            except PyMongoError as error:
                if not passes(error):
                    self._faults.append(error)
                    return
            self._stop.wait(PAUSE_SECONDS)

    def _move(self) -> None:
        [entry] = self._client.config["collections"].find({"_id": NS})
        chunk = self._random.choice(list(self._client.config.chunks.find({"uuid": entry["uuid"]})))
        to = self._random.choice(self._client.config.shards.distinct("_id"))
        # A genuine shard takes no chunk back before it has deleted the documents that it gave away.
        move = {"moveChunk": NS, "bounds": [chunk["min"], chunk["max"]], "to": to, "_waitForDelete": True}
        try:
            self._client.admin.command(move)
        except OperationFailure as error:
            # The shard key may have changed. Chunks get the fields of a refined key later than the collection.
            if error.code not in PASSED_OVER and list(chunk["min"]) == list(key_of(self._client)):
                raise
        else:
            self.moves += 1

    def _write(self) -> None:
        orders, number = self._client[DATABASE].orders, self._random.randrange(NUMBERS)
        which = {"region": REGIONS[number % len(REGIONS)], "n": number}
        kind = self._random.randrange(4)
        if kind == 0:
            orders.delete_one(which)
        elif kind == 1:
            orders.update_one(which, {"$inc": {"count": 1}}, upsert=True)
        elif kind == 2:
            orders.update_many({"n": number}, {"$set": {"text": str(self._random.random())}})
        else:
            orders.replace_one(which, {**which, "replaced": number}, upsert=True)


@contextmanager
def moving(client: Client, seed: int, *, moves: bool = True, writes: bool = True) -> Iterator[Mover]:
    """Move chunks, and write, during the block."""
    mover = Mover(client, seed, moves=moves, writes=writes)
    try:
        yield mover
    finally:
        mover.stop()


def orders() -> list[dict[str, Any]]:
    """The documents of the collection."""
    return [{"region": REGIONS[each % len(REGIONS)], "n": each} for each in range(NUMBERS)]


def shard(client: Client) -> None:
    """Shard the collection, with documents on both shards."""
    first, second = client.config.shards.distinct("_id")
    client.admin.command("enableSharding", DATABASE, primaryShard=first)
    client.admin.command("shardCollection", NS, key={"region": 1})
    client.admin.command("split", NS, middle={"region": MIDDLE})
    client.admin.command("moveChunk", NS, find={"region": MIDDLE}, to=second)
    client[DATABASE].orders.insert_many(orders())


def key_of(client: Client) -> dict[str, Any]:
    """The shard key of the collection."""
    entry = client.config["collections"].find_one({"_id": NS})
    assert entry is not None
    found: dict[str, Any] = entry["key"]
    return found


def refine(client: Client) -> None:
    """Add a field to the shard key."""
    client[DATABASE].orders.create_index([("region", 1), ("n", 1)])
    client.admin.command("refineCollectionShardKey", NS, key={"region": 1, "n": 1})


def reshard(client: Client, field: str = "n") -> None:
    """Change the shard key."""
    client.admin.command("reshardCollection", NS, key={field: 1}, numInitialChunks=4)


def move_primary(client: Client) -> None:
    """Give what is not sharded to the other shard."""
    entry = client.config.databases.find_one({"_id": DATABASE})
    assert entry is not None
    [other] = [each for each in client.config.shards.distinct("_id") if each != entry["primary"]]
    client.admin.command("movePrimary", DATABASE, to=other)


CHANGES: Final[dict[str, Callable[[Client], None]]] = {
    "moves": lambda client: None,
    "refine": refine,
    "reshard": reshard,
    "move primary": move_primary,
}
CASES: Final = [
    *((kinds, change) for kinds in ("cluster-set", "cluster-three") for change in CHANGES),
    *((kinds, change) for kinds in ("genuine-set", "genuine-cluster") for change in ("moves", "refine")),
]


def wait_for_moves(mover: Mover, process: SyncProcess, more: int) -> None:
    """Wait until chunks were moved a few times more."""
    wanted = mover.moves + more
    process.wait_for(lambda _: mover.moves >= wanted or mover.has_failed)


@pytest.mark.matrix(share=0.2)
@pytest.mark.parametrize("while_copying", [True, False], ids=["copy", "follow"])
@pytest.mark.parametrize(("kinds", "change"), CASES)
def test_changes_of_shards_at_the_source_are_followed(
    kinds: str, change: str, *, while_copying: bool, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    with ends_of(request, kinds, tmp_path) as ends:
        shard(ends.source)
        prepare(ends.source)
        with (
            writing(ends.source, seed=9, has_ddl=False, survives=True) as workload,
            moving(ends.source, seed=9) as mover,
            ends.syncing(*SLOW_COPY) as process,
        ):
            process.wait_for(lambda progress: copied(progress) > 100 if while_copying else progress["canCommit"])
            CHANGES[change](ends.source)
            wait_for_moves(mover, process, 2)
            process.wait_followed(ends.source)
            for progress in random_moments(process, seed=9, count=5):
                check_moment(ends, progress, reads_source=change == "moves")
            mover.stop()
            workload.stop()
            check_equal(ends, process, has_key=kinds.endswith(("cluster", "three")))


@pytest.mark.matrix(share=0.5)
@pytest.mark.parametrize("is_dropped", [False, True], ids=["resharded", "dropped"])
def test_several_reshardings_during_a_pause_are_followed(
    *, is_dropped: bool, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    with ends_of(request, "cluster-set", tmp_path) as ends:
        shard(ends.source)
        found = ends.source[DATABASE].orders
        with ends.syncing() as process:
            process.wait_for(lambda progress: progress["canCommit"])
            assert run_sync(ends.directory, "pause", process.id).status == 0
            reshard(ends.source)
            found.delete_many({"n": {"$lt": 100}})
            reshard(ends.source, "region")
            if is_dropped:
                found.drop()
            found.insert_one({"_id": "later", "region": "b", "n": 1})
            assert run_sync(ends.directory, "resume", process.id).status == 0
            check_equal(ends, process, has_key=False)


@pytest.mark.matrix(share=0.5)
@pytest.mark.parametrize("kinds", ["set-cluster", "genuine-three", "cluster-second"])
def test_chunks_of_the_target_move(kinds: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """During the copy and afterwards, as its balancer may do."""
    with ends_of(request, kinds, tmp_path) as ends:
        options = list(SLOW_COPY)
        if kinds.startswith("set"):
            options += ["--shard", f'{NS}={{"region": 1}}']
            ends.source[DATABASE].orders.insert_many(orders())
        else:
            shard(ends.source)
        prepare(ends.source)
        with (
            writing(ends.source, seed=11, has_ddl=False) as workload,
            moving(ends.source, seed=11, moves=False) as writer,
            ends.syncing(*options) as process,
        ):
            process.wait_for(lambda progress: copied(progress) > 100)
            with moving(ends.target, seed=11, writes=False) as mover:
                wait_for_moves(mover, process, 2)
                process.wait_for(lambda progress: progress["canCommit"])
                wait_for_moves(mover, process, 3)
                for progress in random_moments(process, seed=11, count=5):
                    check_moment(ends, progress)
            writer.stop()
            workload.stop()
            process.wait_followed(ends.source)
            found, wanted = contents(ends.target), contents(ends.source)
            assert found[NS][0] == wanted[NS][0]
            report = run_sync(ends.directory, "verify", process.id)
            assert report.status == 0, report.output
            assert process.lines[-1]["counters"]["write_failures"] == 0


def check_equal(ends: Ends, process: SyncProcess, *, has_key: bool) -> None:
    """The target has the documents of the source, and its shard keys if it is sharded."""
    process.wait_followed(ends.source)
    if has_key:
        wanted = encode(key_of(ends.source))
        process.wait_for(lambda _: encode(key_of(ends.target)) == wanted)
    assert contents(ends.target) == contents(ends.source)
    process.wait_for(lambda progress: progress["verification"]["complete"])
    report = run_sync(ends.directory, "verify", process.id)
    assert report.status == 0, report.output
