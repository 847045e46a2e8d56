"""Updates whose collation matches several shard key values at once: every document stays where its key belongs."""

from typing import Final

from tests.chaos.stage import Document, StageClient
from tests.chaos.workloads.base import Workload
from tests.chaos.workloads.endings import check_documents
from tests.chaos.worlds import WORDS, World

WORDED: Final = World("worded", {"word": 1}, ({"word": "a"}, {"word": "m"}))
"""Capital letters are below the first bound, all others above."""

DOCUMENTS: Final = 80
IGNORING_CASE: Final = {"locale": "en", "strength": 2}


class Collations(Workload):
    """See the module. The updates' replies are not checked, because refusing a change of key is correct too."""

    name = "collations"
    clients = 2

    def set_up(self) -> None:
        """Insert documents of all words, in both cases."""
        self.stage.create(WORDED)
        client = StageClient(self.stage, 0, self.stage.seed)
        documents = [{"_id": f"{number}", "word": client.random.choice(WORDS)} for number in range(DOCUMENTS)]
        self.stage.collections[WORDED.name].insert_many(documents)

    def step(self, client: StageClient) -> None:
        """Set a word to one that is equal to it under the collation, or count."""
        word = client.random.choice(WORDS)
        change: Document = client.random.choice([{"$set": {"word": word}}, {"$inc": {"times": 1}}])
        several = client.random.random() < 0.7
        update = {"q": {"word": word}, "u": change, "multi": several, "collation": IGNORING_CASE}
        client.once({"update": WORDED.name, "updates": [update], "writeConcern": {"w": "majority"}})

    def check(self) -> list[str]:
        """All documents are there, with words that they can have, where they belong."""
        found = {document["_id"]: document for document in self.stage.collections[WORDED.name].find()}
        missing = [number for number in map(str, range(DOCUMENTS)) if number not in found]
        anomalies = [f"lost {missing}"] if missing else []
        return [*anomalies, *check_documents(self.stage, WORDED, found)]
