"""A retry storm: counters whose every increment is sent several times, some at the same time, and counts once."""

from contextlib import ExitStack
from typing import Final

from tests.chaos.stage import UNAVAILABLE_SECONDS_MAX, Document, Stage, StageClient
from tests.chaos.workloads.counters import Counters
from tests.chaos.worlds import COMPOUND, RANGED, World
from tests.migration.retrying import Session, Write
from tests.migration.storming import StormingClient

_ADDRESSED_BY_ID: Final = 0.3
"""Share of the updates that go to all shards."""


class Storms(Counters):
    """See the module."""

    name = "storms"
    worlds = (RANGED, COMPOUND)

    def __init__(self, stage: Stage) -> None:
        super().__init__(stage)
        self._storming: dict[int, tuple[StormingClient, Session]] = {}

    def step(self, client: StageClient) -> None:
        """Increment one or some of them, several times as the client sees it."""
        key = client.random.choice(sorted(self.counters))
        world = self.counters[key][0]
        if client.random.random() < 0.3:
            return self._modify_one(client, key)
        of_world = [other for other in sorted(self.counters) if self.counters[other][0] is world]
        return self._update(client, world, client.random.sample(of_world, client.random.randint(1, len(of_world))))

    def _update(self, client: StageClient, world: World, keys: list[str]) -> None:
        by_id = client.random.random() < _ADDRESSED_BY_ID
        queries = [{"_id": key} if by_id else self.counters[key][1] for key in keys]
        updates = [{"q": query, "u": {"$inc": {"value": 1}}} for query in queries]
        command = {"update": world.name, "updates": updates, "ordered": client.random.random() < 0.5}
        with ExitStack() as recording:
            record = self.stage.recorder.attempt
            attempts = [recording.enter_context(record(client.number, "increment", key, 1)) for key in keys]
            said = self._storm(client, command)
            assert said == {"n": len(keys), "nModified": len(keys)}, f"updates of {keys} were answered {said}"
            for attempt in attempts:
                attempt.answer(None)

    def _modify_one(self, client: StageClient, key: str) -> None:
        world, query = self.counters[key]
        with self.stage.recorder.attempt(client.number, "increment", key, 1) as attempt:
            command = {"findAndModify": world.name, "query": query, "update": {"$inc": {"value": 1}}}
            said = self._storm(client, command)
            assert said["value"], f"findAndModify of {key} was answered {said}"
            attempt.answer(said["value"]["value"])

    def _storm(self, client: StageClient, command: Document) -> Document:
        storming, session = self._storming.get(client.number) or self._open(client)
        write = Write.of(self.stage.database, command, session)
        self.stage.history.add("storm", client=client.number, body=write.body)
        return storming.run(write, within=UNAVAILABLE_SECONDS_MAX)

    def _open(self, client: StageClient) -> tuple[StormingClient, Session]:
        routers = self.stage.cluster.router_addresses[: self.stage.shape.routers - 1]
        opened = StormingClient(routers, client.random), Session()
        self._storming[client.number] = opened
        return opened

    def check(self) -> list[str]:
        """Compare all of them with their increments."""
        for storming, _ in self._storming.values():
            storming.close()
        return super().check()
