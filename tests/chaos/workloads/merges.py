"""``$merge`` into a collection that is sharded and moved through another router than the clients'."""

from typing import Final

from tests.chaos.checkers.sets import check_set
from tests.chaos.stage import Stage, StageClient, is_done
from tests.chaos.workloads.base import Workload
from tests.chaos.workloads.late_sharding import LateSharding
from tests.chaos.worlds import World
from tests.integration.sharded import LOWER

SOURCES: Final = 20
TARGET: Final = World("target", {"_id": 1}, ({"_id": "40"}, {"_id": "80"}, {"_id": "c0"}))


class Merges(Workload):
    """Merged documents are there, however the target's placement has changed. A refusal is not an anomaly."""

    name = "merges"

    def __init__(self, stage: Stage) -> None:
        super().__init__(stage)
        self._sharding = LateSharding(stage, TARGET)

    def set_up(self) -> None:
        """Insert the sources."""
        self.stage.admin.admin.command("enableSharding", self.stage.database, primaryShard=LOWER)
        self.stage.collections["source"].insert_many([{"_id": number} for number in range(SOURCES)])
        self.stage.collections.create_collection(TARGET.name)

    def step(self, client: StageClient) -> None:
        """Merge twenty new documents, or read all."""
        if client.number == 0:
            self._sharding.maybe_shard()
        if client.random.random() < 0.8:
            self._merge(client)
        else:
            self._read(client)

    def check(self) -> list[str]:
        """Check that every read, and a last one, shows the merged documents; each document is found by its ``_id``."""
        target = self.stage.collections[TARGET.name]
        with self.stage.recorder.attempt(0, "read", "target") as attempt:
            attempt.answer([document["_id"] for document in target.find()])
        anomalies = check_set(self.stage.recorder.by_key()["target"])
        for document in target.find():
            if target.find_one({"_id": document["_id"]}) != document:
                anomalies.append(f"a scan shows {document}, and its _id does not find it")
        return anomalies

    def _merge(self, client: StageClient) -> None:
        prefix = client.new_identity("merged")
        # The first letters decide about the shard: reversed numbers put one merge on all shards.
        first = {"$arrayElemAt": [["0", "3", "6", "9", "c", "f"], {"$mod": ["$_id", 6]}]}
        pipeline = [
            {"$set": {"_id": {"$concat": [first, prefix, "/", {"$toString": "$_id"}]}}},
            {"$merge": {"into": TARGET.name, "on": "_id", "whenMatched": "replace"}},
        ]
        command = {"aggregate": "source", "pipeline": pipeline, "cursor": {}, "writeConcern": {"w": "majority"}}
        identities = [f"{'0369cf'[number % 6]}{prefix}/{number}" for number in range(SOURCES)]
        with self.stage.recorder.attempt_all(client.number, "add", "target", identities) as attempts:
            if is_done(client.once(command)):
                for attempt in attempts:
                    attempt.answer(None)

    def _read(self, client: StageClient) -> None:
        command = {"find": TARGET.name, "projection": {"_id": 1}, "readConcern": {"level": "majority"}}
        with self.stage.recorder.attempt(client.number, "read", "target") as attempt:
            reply = client.once({**command, "batchSize": 100_000})
            if is_done(reply):
                assert reply is not None
                attempt.answer([document["_id"] for document in reply["cursor"]["firstBatch"]])
                attempt.is_void = reply["cursor"]["id"] != 0
