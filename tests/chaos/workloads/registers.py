"""Registers: documents that several clients read, replace and exchange by their full key; each is linearizable."""

from typing import Final

from tests.chaos.checkers.registers import check_registers
from tests.chaos.stage import Document, Stage, StageClient
from tests.chaos.workloads.base import Workload
from tests.chaos.worlds import COMPOUND, HASHED, RANGED, UNIQUE, World

PER_WORLD: Final = 3


class Registers(Workload):
    """See the module."""

    name = "registers"

    def __init__(self, stage: Stage) -> None:
        super().__init__(stage)
        self._registers: dict[str, tuple[World, Document]] = {}

    def set_up(self) -> None:
        """Insert the registers with the value 0."""
        self.stage.create(RANGED, HASHED, COMPOUND, UNIQUE)
        client = StageClient(self.stage, 0, self.stage.seed)
        for world in (RANGED, HASHED, COMPOUND, UNIQUE):
            for _ in range(PER_WORLD):
                identity = client.new_identity(world.name)
                document = {"_id": identity, **world.shard_key(client.random, identity), "value": 0}
                self.stage.collections[world.name].insert_one(document)
                self._registers[identity] = (world, world.query(document))

    def step(self, client: StageClient) -> None:
        """Read, write or exchange one of them."""
        key = client.random.choice(sorted(self._registers))
        client.random.choice([self._read, self._read, self._write, self._exchange])(client, key)

    def check(self) -> list[str]:
        """Each is linearizable."""
        return check_registers(self.stage.recorder.by_key(), 0)

    def _read(self, client: StageClient, key: str) -> None:
        world, query = self._registers[key]
        command = {"find": world.name, "filter": query, "readConcern": self.stage.read_concern}
        with self.stage.recorder.attempt(client.number, "read", key) as attempt:
            found = client.read(command)["cursor"]["firstBatch"]
            attempt.answer(found[0]["value"] if len(found) == 1 else f"{found}")

    def _write(self, client: StageClient, key: str) -> None:
        world, query = self._registers[key]
        value = client.new_value()
        update = {"q": query, "u": {"$set": {"value": value}}}
        with self.stage.recorder.attempt(client.number, "write", key, value) as attempt:
            said = client.write({"update": world.name, "updates": [update]}, session=key)
            assert said == {"n": 1, "nModified": 1}, f"the update of {key} was answered {said}"
            attempt.answer(None)

    def _exchange(self, client: StageClient, key: str) -> None:
        world, query = self._registers[key]
        value = client.new_value()
        command = {"findAndModify": world.name, "query": query, "update": {"$set": {"value": value}}}
        with self.stage.recorder.attempt(client.number, "exchange", key, value) as attempt:
            said = client.write(command, session=key)
            assert said["value"], f"findAndModify of {key} was answered {said}"
            attempt.answer(said["value"]["value"])
