"""Writes by ``_id`` alone of documents that exist: each finds its document, wherever it currently is."""

from tests.chaos.stage import Document, Stage, StageClient
from tests.chaos.workloads.counters import Counters
from tests.chaos.worlds import COMPOUND, RANGED, World


class Identities(Counters):
    """Counters that are not addressed by their shard key, and documents of each client that it deletes and inserts.

    ``findAndModify`` takes no part: it has to name the shard key, as in MongoDB 6.0.
    """

    name = "identities"
    worlds = (RANGED, COMPOUND)

    def __init__(self, stage: Stage) -> None:
        super().__init__(stage)
        self._own: dict[tuple[int, World], Document] = {}

    def query(self, world: World, document: Document) -> Document:
        """Their ``_id`` alone."""
        return {"_id": document["_id"]}

    def step(self, client: StageClient) -> None:
        """Increment one or some of them, or delete a document."""
        key = client.random.choice(sorted(self.counters))
        client.random.choice([self.update, self.update_some, self._delete_own])(client, key)

    def _delete_own(self, client: StageClient, key: str) -> None:
        """A document that was inserted just now, or a while ago."""
        world = self.counters[key][0]
        document = self._own.pop((client.number, world), None)
        if document is None:
            identity = client.new_identity("own")
            document = {"_id": identity, **world.shard_key(client.random, identity), "owner": client.number}
            said = client.write({"insert": world.name, "documents": [document]}, session="own")
            assert said == {"n": 1}, f"the insert of {document} was answered {said}"
            self._own[client.number, world] = document
            return
        delete = {"q": {"_id": document["_id"]}, "limit": 1}
        said = client.write({"delete": world.name, "deletes": [delete]}, session="own")
        assert said == {"n": 1}, f"the delete of {document} by its _id was answered {said}"
