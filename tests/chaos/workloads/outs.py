"""``$out``: a whole collection as one register, replaced atomically until it is sharded, after which ``$out`` fails."""

from typing import Final

from tests.chaos.checkers.registers import check_registers
from tests.chaos.stage import Stage, StageClient, is_done
from tests.chaos.workloads.base import Workload
from tests.chaos.workloads.late_sharding import LateSharding
from tests.chaos.worlds import World
from tests.integration.sharded import LOWER

DOCUMENTS: Final = 30
TARGET: Final = World("out", {"_id": 1}, ({"_id": 10}, {"_id": 20}))


class Outs(Workload):
    """See the module."""

    name = "outs"

    def __init__(self, stage: Stage) -> None:
        super().__init__(stage)
        self._sharding = LateSharding(stage, TARGET)

    def set_up(self) -> None:
        """Insert the source, and the value 0."""
        self.stage.admin.admin.command("enableSharding", self.stage.database, primaryShard=LOWER)
        self.stage.collections["source"].insert_many([{"_id": number} for number in range(DOCUMENTS)])
        self.stage.collections[TARGET.name].insert_many([{"_id": number, "value": 0} for number in range(DOCUMENTS)])

    def step(self, client: StageClient) -> None:
        """Replace or read."""
        if client.number == 0:
            self._sharding.maybe_shard()
        if client.random.random() < 0.4:
            self._replace(client)
        else:
            self._read(client)

    def check(self) -> list[str]:
        """The register is linearizable, and its last value is there."""
        with self.stage.recorder.attempt(0, "read", TARGET.name) as attempt:
            attempt.answer(_value(list(self.stage.collections[TARGET.name].find())))
        return check_registers(self.stage.recorder.by_key(), 0)

    def _replace(self, client: StageClient) -> None:
        value = client.new_value()
        pipeline = [{"$set": {"value": value}}, {"$out": TARGET.name}]
        command = {"aggregate": "source", "pipeline": pipeline, "cursor": {}, "writeConcern": {"w": "majority"}}
        with self.stage.recorder.attempt(client.number, "write", TARGET.name, value) as attempt:
            if is_done(client.once(command)):
                attempt.answer(None)

    def _read(self, client: StageClient) -> None:
        command = {"find": TARGET.name, "batchSize": 1000, "readConcern": self.stage.read_concern}
        with self.stage.recorder.attempt(client.number, "read", TARGET.name) as attempt:
            reply = client.once(command)
            if is_done(reply):
                assert reply is not None
                attempt.answer(_value(reply["cursor"]["firstBatch"]))


def _value(documents: list[dict[str, int]]) -> object:
    """Return the one value of all documents; without a single one, return the fault, which is never a written value."""
    values = {document["value"] for document in documents}
    if len(values) == 1 and sorted(document["_id"] for document in documents) == list(range(DOCUMENTS)):
        return values.pop()
    return f"{len(documents)} documents with the values {sorted(values)}"
