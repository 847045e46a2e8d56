"""Scans: cursors that stay open for long, with small batches, over documents that do not change."""

import time
from typing import Final

from tests.chaos.checkers.scans import check_scan
from tests.chaos.stage import Document, Stage, StageClient, scanned
from tests.chaos.workloads.base import Workload
from tests.chaos.worlds import HASHED, RANGED, World

STANDING: Final = 300
WORLDS: Final = (RANGED, HASHED)
PAUSE_SECONDS_MAX: Final = 0.3
"""Between two batches: the longest scans are open for about ten seconds."""


class Scans(Workload):
    """See the module. Beside the scans other documents come and go."""

    name = "scans"

    def __init__(self, stage: Stage) -> None:
        super().__init__(stage)
        self._standing: dict[World, set[str]] = {world: set() for world in WORLDS}
        self._passing: dict[World, set[str]] = {world: set() for world in WORLDS}

    def set_up(self) -> None:
        """Insert the documents that stand still."""
        self.stage.create(*WORLDS)
        client = StageClient(self.stage, 0, self.stage.seed)
        for world in WORLDS:
            documents = []
            for _ in range(STANDING):
                identity = client.new_identity("standing")
                documents.append({"_id": identity, **world.shard_key(client.random, identity), "text": "x" * 500})
                self._standing[world].add(identity)
            self.stage.collections[world.name].insert_many(documents)

    def step(self, client: StageClient) -> None:
        """The first client inserts and deletes; the others scan."""
        world = client.random.choice(WORLDS)
        if client.number == 0:
            self._pass(client, world)
        else:
            self._scan(client, world)

    def check(self) -> list[str]:
        """A last scan shows the same."""
        anomalies = []
        for world in WORLDS:
            found = [document["_id"] for document in self.stage.collections[world.name].find({}, {"_id": 1})]
            anomalies += check_scan(found, self._standing[world], self._passing[world])
        return anomalies

    def _pass(self, client: StageClient, world: World) -> None:
        identity = client.new_identity("passing")
        document = {"_id": identity, **world.shard_key(client.random, identity)}
        self._passing[world].add(identity)
        client.write({"insert": world.name, "documents": [document]}, session=world)
        client.write({"delete": world.name, "deletes": [{"q": world.query(document), "limit": 1}]}, session=world)

    def _scan(self, client: StageClient, world: World) -> None:
        command: Document = client.random.choice(
            [
                {"find": world.name},
                {"find": world.name, "readConcern": {"level": "majority"}},
                {"find": world.name, "sort": {"_id": 1}},
                {"aggregate": world.name, "pipeline": [{"$match": {"_id": {"$gt": ""}}}]},
            ]
        )
        batch_size, pause = client.random.choice([7, 20, 60]), client.random.uniform(0, PAUSE_SECONDS_MAX)
        began, batches = time.monotonic(), []
        for batch in client.scan(command, batch_size):
            batches.append(batch)
            # The scan is supposed to take long.
            time.sleep(pause)
        found = scanned(batches)
        if found is not None:
            identities = [document["_id"] for document in found]
            standing, passing = self._standing[world], self._passing[world]
            if not self.stage.is_complete(began):
                standing, passing = set(), standing | passing
            anomalies = check_scan(identities, standing, passing)
            where = f"{command} in batches of {batch_size}, open for {time.monotonic() - began:.1f} s"
            assert not anomalies, f"{where}: {anomalies}"
