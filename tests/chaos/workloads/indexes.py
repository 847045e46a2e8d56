"""``createIndexes``, ``dropIndexes`` and ``collMod`` during moves: at the end all shards have the same definitions."""

from typing import Final

from tests.chaos.checkers.definitions import check_alike
from tests.chaos.stage import Document, StageClient
from tests.chaos.workloads.base import Workload
from tests.chaos.worlds import RANGED
from tests.integration.sharded import chunks

NAMES: Final = ("i0", "i1", "i2", "i3")
DOCUMENTS: Final = 100


class Indexes(Workload):
    """See the module."""

    name = "indexes"
    clients = 2

    def set_up(self) -> None:
        """Create a collection with some documents to move."""
        self.stage.create(RANGED)
        documents = [{"_id": f"{number}", "a": number * 10, "text": "x" * 100} for number in range(DOCUMENTS)]
        self.stage.collections[RANGED.name].insert_many(documents)

    def step(self, client: StageClient) -> None:
        """Define something; what fails is repeated some time, as users would."""
        name = client.random.choice(NAMES)
        command: Document = client.random.choice(
            [
                {"createIndexes": RANGED.name, "indexes": [{"key": {name: 1}, "name": name}]},
                {"dropIndexes": RANGED.name, "index": name},
                {"collMod": RANGED.name, "index": {"name": name, "hidden": client.random.random() < 0.5}},
                {"collMod": RANGED.name, "validator": {"forbidden": {"$ne": client.new_value()}}},
            ]
        )
        client.once({**command, "writeConcern": {"w": "majority"}})

    def check(self) -> list[str]:
        """Compare what the shards have, once all definitions are made again without faults."""
        collection = self.stage.collections[RANGED.name]
        self.stage.collections.command({"collMod": RANGED.name, "validator": {"forbidden": {"$ne": 0}}})
        for name in NAMES:
            collection.create_index([(name, 1)], name=name)
            # One that was hidden on one shard while the other did not have it yet stays hidden there, as in MongoDB.
            self.stage.collections.command({"collMod": RANGED.name, "index": {"name": name, "hidden": False}})
        found = {}
        for shard in sorted({chunk["shard"] for chunk in chunks(self.stage.admin, f"{self.stage.database}.ranged")}):
            index = self.stage.cluster.primary_index(shard)
            database = self.stage.cluster.client(f"{shard}.{index}.mongod")[self.stage.database]
            found[shard] = {
                "indexes": sorted(map(str, database[RANGED.name].list_indexes())),
                "options": next(iter(database.list_collections(filter={"name": RANGED.name})))["options"],
            }
        return check_alike(found)
