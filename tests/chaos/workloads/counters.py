"""Counters: documents that all clients increment in every way that names a full shard key; no increment is lost."""

from contextlib import ExitStack
from typing import Any, Final

from tests.chaos.checkers.counters import check_counters
from tests.chaos.stage import Document, Stage, StageClient, is_done
from tests.chaos.workloads.base import Workload
from tests.chaos.worlds import COMPOUND, HASHED, RANGED, UNIQUE, World

PER_WORLD: Final = 8


class Counters(Workload):
    """See the module."""

    name = "counters"
    worlds: tuple[World, ...] = (RANGED, HASHED, COMPOUND, UNIQUE)

    def __init__(self, stage: Stage) -> None:
        super().__init__(stage)
        self.counters: dict[str, tuple[World, Document]] = {}

    def set_up(self) -> None:
        """Insert the counters, all of them 0."""
        self.stage.create(*self.worlds)
        client = StageClient(self.stage, 0, self.stage.seed)
        for world in self.worlds:
            for _ in range(PER_WORLD):
                identity = client.new_identity(world.name)
                document = {"_id": identity, **world.shard_key(client.random, identity), "value": 0}
                self.stage.collections[world.name].insert_one(document)
                self.counters[identity] = (world, self.query(world, document))

    def query(self, world: World, document: Document) -> Document:
        """Return the query for a counter."""
        return world.query(document)

    def step(self, client: StageClient) -> None:
        """Increment one or some of them."""
        key = client.random.choice(sorted(self.counters))
        client.random.choice([self.update, self._modify, self.update_some, self._update_many])(client, key)

    def check(self) -> list[str]:
        """Compare all of them with their increments."""
        return check_counters(self.stage.recorder.by_key(), self._totals())

    def _totals(self) -> dict[str, int]:
        totals: dict[str, int] = {}
        for world in self.worlds:
            found: list[dict[str, Any]] = list(self.stage.collections[world.name].find({"owner": None}))
            assert len(found) == PER_WORLD, f"{world.name} shows {found}"
            totals.update((document["_id"], document["value"]) for document in found)
        return totals

    def update(self, client: StageClient, key: str) -> None:
        """One retryable update."""
        world, query = self.counters[key]
        with self.stage.recorder.attempt(client.number, "increment", key, 1) as attempt:
            said = client.write({"update": world.name, "updates": [_increment(query)]}, session=key)
            assert said == {"n": 1, "nModified": 1}, f"the update of {key} was answered {said}"
            attempt.answer(None)

    def _modify(self, client: StageClient, key: str) -> None:
        world, query = self.counters[key]
        command = {"findAndModify": world.name, "query": query, "update": {"$inc": {"value": 1}}}
        with self.stage.recorder.attempt(client.number, "increment", key, 1) as attempt:
            said = client.write(command, session=key)
            assert said["value"], f"findAndModify of {key} was answered {said}"
            attempt.answer(said["value"]["value"])

    def update_some(self, client: StageClient, key: str) -> None:
        """One command whose statements go to several shards."""
        world = self.counters[key][0]
        keys = [other for other in sorted(self.counters) if self.counters[other][0] is world]
        updates = [_increment(self.counters[other][1]) for other in keys]
        command = {"update": world.name, "updates": updates, "ordered": client.random.random() < 0.5}
        with ExitStack() as recording:
            record = self.stage.recorder.attempt
            attempts = [recording.enter_context(record(client.number, "increment", other, 1)) for other in keys]
            said = client.write(command, session=world)
            assert said == {"n": len(keys), "nModified": len(keys)}, f"updates of {keys} were answered {said}"
            for attempt in attempts:
                attempt.answer(None)

    def _update_many(self, client: StageClient, key: str) -> None:
        """Not retryable, and pinned to one shard: without a reply its effect is unknown."""
        world, query = self.counters[key]
        command = {"update": world.name, "updates": [{**_increment(query), "multi": True}]}
        with self.stage.recorder.attempt(client.number, "increment", key, 1) as attempt:
            reply = client.once({**command, "writeConcern": {"w": "majority"}})
            if is_done(reply):
                assert reply is not None
                assert reply["n"] == 1, f"updateMany of {key} was answered {reply}"
                attempt.answer(None)


def _increment(query: Document) -> Document:
    return {"q": query, "u": {"$inc": {"value": 1}}}
