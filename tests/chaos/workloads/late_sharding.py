"""A collection that is initially unsharded, and is sharded during the run."""

import random
import threading
from typing import Final

from pymongo.errors import PyMongoError

from tests.chaos.stage import Stage
from tests.chaos.worlds import World, shard_world

CHANCE: Final = 0.04
"""The probability at each step."""


class LateSharding:
    """Shards and splits one collection once, through the quiet router; then moves may take its chunks.

    It moves nothing itself: other moves of the round would be in the way nearly always.
    """

    def __init__(self, stage: Stage, world: World) -> None:
        self._stage = stage
        self._world = world
        self._random = random.Random(f"{stage.seed}/late/{world.name}")
        self._lock = threading.Lock()
        self._is_sharded = False

    def maybe_shard(self) -> None:
        """Shard it now, or more often not yet. An attempt that fails is made again some time."""
        with self._lock:
            if self._is_sharded or self._random.random() > CHANCE:
                return
            try:
                shard_world(self._stage.admin, self._stage.database, self._world)
            except PyMongoError as error:
                self._stage.history.add("not sharded", world=self._world.name, error=str(error))
            else:
                self._is_sharded = True
                self._stage.worlds.append(self._world)
                self._stage.history.add("sharded", world=self._world.name)
