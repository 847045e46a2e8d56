"""Scans: cursors that stay open for long, with small batches, over documents that do not change.

Slow scans are of every shape, with pauses of several seconds, and must not end because a chunk has moved.
"""

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
SLOW_PAUSE_SECONDS: Final = (2.0, 7.0)
_QUERY_PLAN_KILLED: Final = 175
_ROLLED_BACK: Final = "the catalog was closed and reopened"
"""With this message a mongod ends cursors because it rolls back what a former primary wrote alone."""
_EVERYTHING: Final = 10_000


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
                key = world.shard_key(client.random, identity)
                documents.append({"_id": identity, **key, "name": identity, "list": [1], "text": "x" * 500})
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
        document = {"_id": identity, **world.shard_key(client.random, identity), "name": identity, "list": [1]}
        self._passing[world].add(identity)
        client.write({"insert": world.name, "documents": [document]}, session=world)
        client.write({"delete": world.name, "deletes": [{"q": world.query(document), "limit": 1}]}, session=world)

    def commands(self, world: World) -> list[Document]:
        """The scans, which show each document's identity as ``_id`` or ``name``."""
        return [
            {"find": world.name},
            {"find": world.name, "readConcern": {"level": "majority"}},
            {"find": world.name, "sort": {"_id": 1}},
            {"aggregate": world.name, "pipeline": [{"$match": {"_id": {"$gt": ""}}}]},
        ]

    def pause_seconds(self, client: StageClient) -> float:
        """Draw the pause between two batches of a scan."""
        return client.random.uniform(0, PAUSE_SECONDS_MAX)

    def batch_size(self, client: StageClient) -> int:
        """The size of a scan's batches."""
        return client.random.choice([7, 20, 60])

    def check_end(self, client: StageClient) -> None:
        """Check why a scan has ended early."""

    def _scan(self, client: StageClient, world: World) -> None:
        command = client.random.choice(self.commands(world))
        batch_size, pause = self.batch_size(client), self.pause_seconds(client)
        began, batches = time.monotonic(), []
        for batch in client.scan(command, batch_size):
            batches.append(batch)
            # The scan is supposed to take long.
            time.sleep(pause)
        found = scanned(batches)
        if found is None:
            self.check_end(client)
        else:
            identities = [document.get("_id") or document["name"] for document in found]
            standing, passing = self._standing[world], self._passing[world]
            if not self.stage.is_complete(began):
                standing, passing = set(), standing | passing
            anomalies = check_scan(identities, standing, passing)
            where = f"{command} in batches of {batch_size}, open for {time.monotonic() - began:.1f} s"
            assert not anomalies, f"{where}: {anomalies}"


class SlowScans(Scans):
    """See the module."""

    name = "slow_scans"

    def commands(self, world: World) -> list[Document]:
        """Scans of every shape."""
        find: list[Document] = [
            {},
            {"projection": {"_id": 1}},
            {"projection": {"name": 1}},
            {"projection": {name: 0 for name in world.key}},
            {"projection": {"name": {"$concat": ["$name", ""]}}},
            {"projection": {"_id": 0, "name": 1}},
            {"projection": {"_id": 0, "name": 1}, "sort": {"name": 1}},
            {"limit": _EVERYTHING},
            {"limit": _EVERYTHING + 1, "projection": {"name": 1}},
            {"sort": {"name": -1}, "limit": _EVERYTHING},
        ]
        pipelines: list[list[Document]] = [
            [],
            [{"$project": {"name": 1}}],
            [{"$project": {"_id": 0, "name": 1}}],
            [{"$addFields": {"key": 1, "list": 1}}],
            [{"$unset": list(world.key)}] if "_id" not in world.key else [{"$unset": "text"}],
            [{"$unwind": "$list"}],
            [{"$sort": {"name": 1}}],
            [{"$match": {"_id": {"$gt": ""}}}, {"$limit": _EVERYTHING}],
            [{"$sort": {"name": 1}}, {"$limit": _EVERYTHING}],
            [{"$replaceRoot": {"newRoot": {"name": "$name"}}}],
            [{"$group": {"_id": "$name"}}],
        ]
        return [
            *({"find": world.name, **each} for each in find),
            *({"aggregate": world.name, "pipeline": each} for each in pipelines),
        ]

    def pause_seconds(self, client: StageClient) -> float:
        """Several seconds."""
        return client.random.uniform(*SLOW_PAUSE_SECONDS)

    def batch_size(self, client: StageClient) -> int:
        """A batch size that divides a scan into a few batches."""
        return client.random.choice([60, 110])

    def check_end(self, client: StageClient) -> None:
        """Check that no scan ended because of a move."""
        refusal = client.refusal or {}
        is_killed = refusal.get("code") == _QUERY_PLAN_KILLED and refusal["errmsg"] != _ROLLED_BACK
        assert not is_killed, f"a scan was ended because a chunk moved: {refusal['errmsg']}"
