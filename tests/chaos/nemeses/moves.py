"""Continuous moves, splits and merges of chunks through a router that no client uses."""

from collections import Counter
from typing import Final

from pymongo.errors import AutoReconnect, OperationFailure, PyMongoError

from tests.chaos.nemeses.base import Nemesis, Scene
from tests.chaos.stage import Document, Stage
from tests.chaos.worlds import World
from tests.integration.sharded import catalog_entry, chunks_of

CHUNKS_MAX: Final = 12
"""If a collection has more chunks, some are merged before any is split."""

PAUSE_AFTER_FAILURE_SECONDS: Final = 0.2


class Moves(Nemesis):
    """See the module.

    Attributes:
        moved: the number of successful moves.
        failed: the number of failed ones, by the error's name.
    """

    kind = "moves"
    interval = (0.0, 0.05)

    def __init__(self, scene: Scene, seed: str) -> None:
        super().__init__(scene, seed)
        self.moved = 0
        self.failed: Counter[str] = Counter()
        self._shards = list(scene.cluster.running.shards)
        self._client = scene.cluster.router(scene.shape.routers - 1)

    def harm(self) -> None:
        """Make one random change to one random collection."""
        # Drawn before any command is sent, so that it depends on the seed alone.
        draws = [self.random.random() for _ in range(4)]
        worlds = [(stage, world) for stage in self.scene.stages for world in list(stage.worlds)]
        if not worlds:
            self.rest(PAUSE_AFTER_FAILURE_SECONDS)
            return
        stage, world = worlds[int(draws[3] * len(worlds))]
        bound = world.bound(self.random)
        command: Document = {}
        try:
            command = self._choose(stage, world, draws, bound)
            self.scene.history.add("change", command=command)
            if command:
                self._client.admin.command(command)
        except OperationFailure as error:
            self._count_failure(command, str((error.details or {}).get("codeName", error.code)))
        except (AutoReconnect, PyMongoError) as error:
            self._count_failure(command, type(error).__name__)
        else:
            self.scene.history.add("changed", command=command)
            is_move = next(iter(command), "") in ("moveChunk", "moveRange")
            self.moved += is_move
            self.counts["move" if is_move else "split or merge"] += 1

    def _count_failure(self, command: Document, name: str) -> None:
        self.scene.history.add("unchanged", command=command, error=name)
        if name == "DataCorruptionDetected":
            self.scene.history.anomaly(f"{command} would have lost or resurrected documents")
        if next(iter(command), "") in ("moveChunk", "moveRange"):
            self.failed[name] += 1
        # The obstacle will remain for a while.
        self.rest(PAUSE_AFTER_FAILURE_SECONDS)

    def _choose(self, stage: Stage, world: World, draws: list[float], bound: Document) -> Document:
        """A command; empty if the collection is not currently sharded by this key."""
        namespace = f"{stage.database}.{world.name}"
        entry = catalog_entry(self._client, namespace)
        if entry is None or entry["key"] != world.key:
            return {}
        found = chunks_of(self._client, entry)
        if not found:
            return {}
        index, kind = int(draws[0] * len(found)), draws[1]
        chunk = found[index]
        target = [shard for shard in self._shards if shard != chunk["shard"]]
        to = target[int(draws[2] * len(target))]
        if kind < 0.15:
            after = found[index + 1 : index + 2]
            if len(found) > CHUNKS_MAX and after and after[0]["shard"] == chunk["shard"]:
                return {"mergeChunks": namespace, "bounds": [chunk["min"], after[0]["max"]]}
            if len(found) <= CHUNKS_MAX:
                return {"split": namespace, "middle": bound}
        if kind < 0.4 and len(found) <= 2 * CHUNKS_MAX:
            # From a bound inside of a chunk to that chunk's end: splits and moves.
            return {"moveRange": namespace, "min": bound, "toShard": to}
        return {"moveChunk": namespace, "bounds": [chunk["min"], chunk["max"]], "to": to}
