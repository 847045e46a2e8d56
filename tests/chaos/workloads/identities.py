"""Writes by ``_id`` alone of documents that always exist: each finds its document, wherever it is just now."""

from tests.chaos.stage import Document
from tests.chaos.workloads.counters import Counters
from tests.chaos.worlds import COMPOUND, RANGED, World


class Identities(Counters):
    """Counters that are not addressed by their shard key."""

    name = "identities"
    worlds = (RANGED, COMPOUND)

    def query(self, world: World, document: Document) -> Document:
        """Their ``_id`` alone."""
        return {"_id": document["_id"]}
