"""Multi-updates and multi-deletes over several shards during moves: documents are neither lost nor duplicated.

As in MongoDB 6.0, one that runs during the commit of a move may see a document on both shards or on neither. It must
not lose documents, bring them back, or change documents that it does not match.
"""

from typing import Final

from tests.chaos.stage import Document, Stage, StageClient
from tests.chaos.workloads.base import Workload
from tests.chaos.workloads.endings import check_documents
from tests.chaos.worlds import COMPOUND, RANGED

DOCUMENTS: Final = 200
WORLDS: Final = (RANGED, COMPOUND)


class MultiUpdates(Workload):
    """See the module."""

    name = "multi_updates"
    clients = 2

    def __init__(self, stage: Stage) -> None:
        super().__init__(stage)
        self._documents: dict[str, dict[str, Document]] = {world.name: {} for world in WORLDS}

    def set_up(self) -> None:
        """Insert the documents; every third one is never matched."""
        self.stage.create(*WORLDS)
        client = StageClient(self.stage, 0, self.stage.seed)
        for world in WORLDS:
            for number in range(DOCUMENTS):
                identity = client.new_identity("document")
                place = world.shard_key(client.random, identity)
                document = {"_id": identity, **place, "number": number, "kind": number % 3}
                self._documents[world.name][identity] = document
            self.stage.collections[world.name].insert_many(list(self._documents[world.name].values()))

    def step(self, client: StageClient) -> None:
        """Update most documents, or delete some that are not there."""
        world = client.random.choice(WORLDS)
        low = client.random.randrange(1000)
        query = client.random.choice([{"kind": {"$gt": 0}}, {"a": {"$gte": low, "$lt": low + 300}, "kind": {"$gt": 0}}])
        update: Document = {"q": query, "u": {"$inc": {"times": 1}}, "multi": True}
        if client.random.random() < 0.2:
            client.once({"delete": world.name, "deletes": [{"q": {"kind": 3}, "limit": 0}]})
            return
        reply = client.once({"update": world.name, "updates": [update], "writeConcern": {"w": "majority"}})
        if reply is not None and reply.get("ok") == 1:
            assert reply["n"] <= 2 * DOCUMENTS, f"{query} matched {reply['n']} of {DOCUMENTS} documents"

    def check(self) -> list[str]:
        """Check that all documents are there, and the unmatched ones are unchanged."""
        anomalies = []
        for world in WORLDS:
            inserted = self._documents[world.name]
            shown = {document["_id"]: document for document in self.stage.collections[world.name].find()}
            for identity, document in shown.items():
                expected = dict(inserted.get(identity, {}))
                if expected.get("kind") and "times" in document:
                    expected["times"] = document["times"]
                if document != expected:
                    anomalies.append(f"{world.name} shows {document} where {expected} was inserted")
            anomalies += check_documents(self.stage, world, {**inserted, **shown})
        return anomalies
