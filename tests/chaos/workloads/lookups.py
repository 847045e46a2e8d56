"""``$lookup``, ``$graphLookup`` and ``$unionWith`` on a collection that is sharded and moved meanwhile."""

from typing import Final

from tests.chaos.checkers.scans import check_scan
from tests.chaos.stage import Document, Stage, StageClient, is_done
from tests.chaos.workloads.base import Workload
from tests.chaos.workloads.late_sharding import LateSharding
from tests.chaos.worlds import World
from tests.integration.sharded import LOWER

DOCUMENTS: Final = 40
FOREIGN: Final = World("foreign", {"_id": 1}, ({"_id": "f10"}, {"_id": "f20"}, {"_id": "f30"}))


class Lookups(Workload):
    """Nothing is written, so every result must be complete. A refusal is not an anomaly."""

    name = "lookups"
    clients = 2

    def __init__(self, stage: Stage) -> None:
        super().__init__(stage)
        self._sharding = LateSharding(stage, FOREIGN)
        self._identities = {f"f{number:02}" for number in range(DOCUMENTS)}

    def set_up(self) -> None:
        """Insert both sides."""
        self.stage.admin.admin.command("enableSharding", self.stage.database, primaryShard=LOWER)
        foreign = [{"_id": identity, "of": "one"} for identity in sorted(self._identities)]
        self.stage.collections[FOREIGN.name].insert_many(foreign)
        self.stage.collections["local"].insert_one({"_id": "one"})

    def step(self, client: StageClient) -> None:
        """Join."""
        if client.number == 0:
            self._sharding.maybe_shard()
        name, pipeline = client.random.choice(_PIPELINES)
        reply = client.once({"aggregate": "local", "pipeline": pipeline, "cursor": {"batchSize": 1000}})
        if is_done(reply):
            assert reply is not None
            found = [each["_id"] for document in reply["cursor"]["firstBatch"] for each in document.get("found", [])]
            anomalies = check_scan(found, self._identities)
            assert not anomalies, f"{name}: {anomalies}"

    def check(self) -> list[str]:
        """All that is joined is still there."""
        found = [document["_id"] for document in self.stage.collections[FOREIGN.name].find()]
        return check_scan(found, self._identities)


_UNION: Final[list[Document]] = [
    {"$unionWith": FOREIGN.name},
    {"$match": {"of": "one"}},
    {"$group": {"_id": 1, "found": {"$push": {"_id": "$_id"}}}},
]

_PIPELINES: Final[tuple[tuple[str, list[Document]], ...]] = (
    ("$lookup", [{"$lookup": {"from": FOREIGN.name, "localField": "_id", "foreignField": "of", "as": "found"}}]),
    (
        "$graphLookup",
        [
            {
                "$graphLookup": {
                    "from": FOREIGN.name,
                    "startWith": "$_id",
                    "connectFromField": "_id",
                    "connectToField": "of",
                    "as": "found",
                }
            }
        ],
    ),
    ("$unionWith", _UNION),
)
