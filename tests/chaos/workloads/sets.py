"""Sets: documents that clients insert, delete and scan; none is lost, none comes back, none is there twice."""

import time
from typing import Final

from tests.chaos.checkers.sets import check_set
from tests.chaos.stage import Document, Stage, StageClient, scanned
from tests.chaos.workloads.base import Workload
from tests.chaos.workloads.endings import check_documents
from tests.chaos.worlds import COMPOUND, HASHED, RANGED, UNIQUE, World

ELEMENTS_MAX: Final = 120
"""Of one client in one collection."""

WORLDS: Final = (RANGED, HASHED, COMPOUND, UNIQUE)


class Sets(Workload):
    """See the module. Each client has a set of its own in each collection."""

    name = "sets"

    def __init__(self, stage: Stage) -> None:
        super().__init__(stage)
        self._elements: dict[tuple[int, World], dict[str, Document]] = {
            (number, world): {} for number in range(self.clients) for world in WORLDS
        }

    def set_up(self) -> None:
        """Create the collections."""
        self.stage.create(*WORLDS)

    def step(self, client: StageClient) -> None:
        """Add, remove or read."""
        world = client.random.choice(WORLDS)
        client.random.choice([self._add, self._add, self._remove, self._read])(client, world)

    def check(self) -> list[str]:
        """Check every read, and the stored elements at the end."""
        anomalies = [
            f"set {key}: {anomaly}"
            for key, operations in self.stage.recorder.by_key().items()
            for anomaly in check_set(operations)
        ]
        for world in WORLDS:
            documents: dict[str, Document] = {}
            for number in range(self.clients):
                documents |= self._elements[number, world]
            anomalies += check_documents(self.stage, world, documents)
        return anomalies

    def _add(self, client: StageClient, world: World) -> None:
        elements = self._elements[client.number, world]
        if len(elements) >= ELEMENTS_MAX:
            return
        identity = client.new_identity(f"element/{client.number}")
        document = {"_id": identity, **world.shard_key(client.random, identity), "owner": client.number}
        with self.stage.recorder.attempt(client.number, "add", _key(client, world), identity) as attempt:
            said = client.write({"insert": world.name, "documents": [document]}, session=world)
            assert said == {"n": 1}, f"the insert of {document} was answered {said}"
            attempt.answer(None)
        elements[identity] = document

    def _remove(self, client: StageClient, world: World) -> None:
        elements = self._elements[client.number, world]
        if not elements:
            return
        identity = client.random.choice(list(elements))
        delete = {"q": world.query(elements[identity]), "limit": 1}
        with self.stage.recorder.attempt(client.number, "remove", _key(client, world), identity) as attempt:
            said = client.write({"delete": world.name, "deletes": [delete]}, session=world)
            assert said == {"n": 1}, f"the delete of {identity} was answered {said}"
            attempt.answer(None)
        del elements[identity]

    def _read(self, client: StageClient, world: World) -> None:
        command = {"find": world.name, "filter": {"owner": client.number}, "readConcern": {"level": "majority"}}
        began = time.monotonic()
        with self.stage.recorder.attempt(client.number, "read", _key(client, world)) as attempt:
            found = scanned(list(client.scan(command, client.random.choice([5, 50, 500]))))
            if found is not None and self.stage.is_complete(began):
                attempt.answer([document["_id"] for document in found])


def _key(client: StageClient, world: World) -> str:
    return f"{world.name}/{client.number}"
