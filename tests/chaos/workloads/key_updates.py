"""Updates of shard key values, each of one document by its owner; it is found by its new key, and there once."""

from typing import Final

from tests.chaos.stage import Document, Stage, StageClient
from tests.chaos.workloads.base import Workload
from tests.chaos.workloads.endings import check_documents
from tests.chaos.worlds import COMPOUND, KEYS, RANGED, World
from tests.migration.retrying import WriteRefusedError

PER_CLIENT: Final = 10
WORLDS: Final = (RANGED, COMPOUND)

REFUSALS: Final = ("'code': 50,",)
"""The error of a refused change: MaxTimeMSExpired."""


class KeyUpdates(Workload):
    """See the module."""

    name = "key_updates"

    def __init__(self, stage: Stage) -> None:
        super().__init__(stage)
        self._documents: dict[tuple[int, World], dict[str, Document]] = {}

    def set_up(self) -> None:
        """Insert the documents of all clients."""
        self.stage.create(*WORLDS)
        creator = StageClient(self.stage, 0, self.stage.seed)
        for number in range(self.clients):
            for world in WORLDS:
                documents = {}
                for _ in range(PER_CLIENT):
                    identity = creator.new_identity(f"owned/{number}")
                    place = world.shard_key(creator.random, identity)
                    documents[identity] = {"_id": identity, **place, "times": 0}
                self.stage.collections[world.name].insert_many(list(documents.values()))
                self._documents[number, world] = documents

    def step(self, client: StageClient) -> None:
        """Change a key, mostly by little, so that the document often stays on its shard; or look for a document."""
        world = client.random.choice(WORLDS)
        documents = self._documents[client.number, world]
        document = documents[client.random.choice(sorted(documents))]
        if client.random.random() < 0.4:
            query = {"filter": world.query(document), "readConcern": self.stage.read_concern}
            found = client.read({"find": world.name, **query})["cursor"]["firstBatch"]
            assert found == [document], f"{document} is found by its key as {found}"
            return
        change = client.random.choice([1, 1, 2, 300])
        new = {**document, "a": (document["a"] + change) % KEYS, "times": document["times"] + 1}
        update: Document = {"$set": {"a": new["a"]}, "$inc": {"times": 1}}
        command = {"update": world.name, "updates": [{"q": world.query(document), "u": update}]}
        try:
            said = client.write(command, session=(world, document["_id"]))
        except WriteRefusedError as error:
            if not any(code in str(error) for code in REFUSALS):
                raise
            return
        if said.get("writeErrors"):
            assert said["n"] == 0, f"{command} was answered {said}"
            return
        assert said == {"n": 1, "nModified": 1}, f"{command} was answered {said}"
        documents[document["_id"]] = new

    def check(self) -> list[str]:
        """All documents are where their keys belong."""
        anomalies = []
        for world in WORLDS:
            documents: dict[str, Document] = {}
            for number in range(self.clients):
                documents |= self._documents[number, world]
            anomalies += check_documents(self.stage, world, documents)
        return anomalies
