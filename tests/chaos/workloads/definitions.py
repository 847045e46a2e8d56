"""Collections that are dropped, created again, sharded by another key, and dropped with their database.

A collection is a set of the values inserted since its last drop. An acknowledged insert survives until the next drop,
and nothing from before a drop is seen after it.
"""

from typing import Final

from tests.chaos.checkers.sets import check_set
from tests.chaos.stage import StageClient, is_done
from tests.chaos.workloads.base import Workload
from tests.chaos.worlds import World
from tests.integration.sharded import LOWER

BY_A: Final = World("made", {"a": 1}, ({"a": 300}, {"a": 600}))
BY_B: Final = World("made", {"a": 1, "b": 1}, ({"a": 500, "b": "m"},))

_NOT_FOUND: Final = 26


class Definitions(Workload):
    """See the module. The first client defines; the others insert and read."""

    name = "definitions"
    clients = 4

    def set_up(self) -> None:
        """Create the database; the collection is made by the first insert."""
        self.stage.admin.admin.command("enableSharding", self.stage.database, primaryShard=LOWER)

    def step(self, client: StageClient) -> None:
        """Define, insert or read."""
        if client.number == 0:
            self._define(client)
        elif client.random.random() < 0.8:
            self._insert(client)
        else:
            self._read(client)

    def check(self) -> list[str]:
        """Every read was right, and a last one is."""
        with self.stage.recorder.attempt(0, "read", BY_A.name) as attempt:
            attempt.answer([document["_id"] for document in self.stage.collections[BY_A.name].find()])
        return check_set(self.stage.recorder.by_key()[BY_A.name])

    def _define(self, client: StageClient) -> None:
        kind = client.random.choice(["insert"] * 20 + ["shard", "shard", "drop", "drop database"])
        if kind == "insert":
            self._insert(client)
        elif kind == "shard":
            self._shard(client)
        else:
            command = {"drop": BY_A.name} if kind == "drop" else {"dropDatabase": 1}
            with self.stage.recorder.attempt(client.number, "clear", BY_A.name, kind) as attempt:
                reply = client.once(command)
                if is_done(reply) or (reply is not None and reply.get("code") == _NOT_FOUND):
                    attempt.answer(None)
            self.stage.worlds.clear()

    def _shard(self, client: StageClient) -> None:
        """By one key or another; refused while the collection is sharded by the other one."""
        world = client.random.choice([BY_A, BY_B])
        namespace = f"{self.stage.database}.{world.name}"
        index = {"key": world.key, "name": "+".join(world.key)}
        if not is_done(client.once({"createIndexes": world.name, "indexes": [index]})):
            return
        if is_done(client.once({"shardCollection": namespace, "key": world.key}, database="admin")):
            for bound in world.splits:
                client.once({"split": namespace, "middle": bound}, database="admin")
            self.stage.worlds[:] = [world]

    def _insert(self, client: StageClient) -> None:
        identity = client.new_identity("made")
        document = {"_id": identity, **BY_B.shard_key(client.random, identity)}
        command = {"insert": BY_A.name, "documents": [document], "writeConcern": {"w": "majority"}}
        with self.stage.recorder.attempt(client.number, "add", BY_A.name, identity) as attempt:
            if is_done(client.once(command)):
                attempt.answer(None)

    def _read(self, client: StageClient) -> None:
        command = {"find": BY_A.name, "batchSize": 100_000, "readConcern": self.stage.read_concern}
        with self.stage.recorder.attempt(client.number, "read", BY_A.name) as attempt:
            reply = client.once(command)
            if is_done(reply):
                assert reply is not None
                attempt.answer([document["_id"] for document in reply["cursor"]["firstBatch"]])
