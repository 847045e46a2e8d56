"""Chunks that are moved, split and merged without end."""

import random
import threading
import traceback
from collections import Counter
from typing import Any, Final

from pymongo.errors import AutoReconnect, OperationFailure, PyMongoError

from tests.chaos.history import History
from tests.chaos.worlds import WORLDS, World
from tests.integration.sharded import chunks
from tests.migration.fault_cluster import FaultCluster

Document = dict[str, Any]

CHUNKS_MAX: Final = 12
"""More in one collection are merged before anything is split."""

PAUSE_AFTER_FAILURE_SECONDS: Final = 0.2


class Mover(threading.Thread):
    """Chooses at random what to move; a thread that runs until it is told to end.

    Attributes:
        moved: how many moves were committed and answered.
        failed: how many were not, by the error's name.
    """

    def __init__(self, cluster: FaultCluster, history: History, seed: str) -> None:
        super().__init__(daemon=True)
        self.moved = 0
        self.failed: Counter[str] = Counter()
        self._history = history
        self._random = random.Random(f"{seed}/mover")
        self._clients = [cluster.running.direct(f"router.{n}", serverSelectionTimeoutMS=5_000) for n in range(2)]
        self._shards = list(cluster.running.shards)
        self._is_stopping = threading.Event()

    def stop(self) -> None:
        """End after the change under way."""
        self._is_stopping.set()

    def run(self) -> None:
        """Make random changes."""
        try:
            while not self._is_stopping.is_set() and not self._history.failed.is_set():
                self._change()
        except BaseException as failure:
            self._history.anomaly(f"the mover failed: {traceback.format_exception(failure)}")
        finally:
            for client in self._clients:
                client.close()

    def _change(self) -> None:
        client, world = self._random.choice(self._clients), self._random.choice(WORLDS)
        # Drawn before anything is asked, so that what is drawn depends on the seed alone.
        draws = [self._random.random() for _ in range(3)]
        bound = world.bound(self._random)
        command: Document = {}
        try:
            command = self._choose(world, chunks(client, world.namespace), draws, bound)
            self._history.add("change", command=command)
            client.admin.command(command)
        except AutoReconnect as error:
            self._count(command, type(error).__name__)
        except OperationFailure as error:
            self._count(command, str((error.details or {}).get("codeName", error.code)))
        except PyMongoError as error:
            self._count(command, type(error).__name__)
        else:
            self._history.add("changed", command=command)
            self.moved += next(iter(command)) in ("moveChunk", "moveRange")

    def _count(self, command: Document, name: str) -> None:
        self._history.add("unchanged", command=command, error=name)
        # What is in the way now is so for a while.
        self._is_stopping.wait(PAUSE_AFTER_FAILURE_SECONDS)
        if next(iter(command), "") in ("moveChunk", "moveRange"):
            self.failed[name] += 1

    def _choose(self, world: World, found: list[Document], draws: list[float], bound: Document) -> Document:
        index = int(draws[0] * len(found))
        chunk, kind = found[index], draws[1]
        target = [shard for shard in self._shards if shard != chunk["shard"]]
        to = target[int(draws[2] * len(target))]
        if kind < 0.15:
            after = found[index + 1 : index + 2]
            if len(found) > CHUNKS_MAX and after and after[0]["shard"] == chunk["shard"]:
                return {"mergeChunks": world.namespace, "bounds": [chunk["min"], after[0]["max"]]}
            if len(found) <= CHUNKS_MAX:
                return {"split": world.namespace, "middle": bound}
        if kind < 0.4 and len(found) <= 2 * CHUNKS_MAX:
            # From a bound inside of a chunk to that chunk's end: splits and moves.
            return {"moveRange": world.namespace, "min": bound, "toShard": to}
        return {"moveChunk": world.namespace, "bounds": [chunk["min"], chunk["max"]], "to": to}
