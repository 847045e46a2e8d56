"""Causally consistent sessions: writes and reads through all routers, on primaries and secondaries of all shards."""

from collections import deque
from dataclasses import dataclass, field
from typing import Any, Final

from tests.chaos.checkers.causality import Knowledge
from tests.chaos.stage import Document, Stage, StageClient
from tests.chaos.workloads.base import Workload
from tests.chaos.worlds import RANGED

CELLS_PER_CLIENT: Final = 3
MODES: Final = ("primary", "primaryPreferred", "secondary", "secondaryPreferred", "nearest")


@dataclass
class CausalSession:
    """A session with its progress.

    Attributes:
        time: the operation time after which it reads.
    """

    knowledge: Knowledge = field(default_factory=Knowledge)
    time: Any = None

    def advance(self, time: Any) -> None:  # noqa: ANN401 - a Timestamp
        """Continue after the time of an operation, which may be another session's."""
        self.time = time if self.time is None else max(self.time, time)


class Causality(Workload):
    """See the module. Sessions hand their times over to each other, as applications may."""

    name = "causality"
    clients = 4

    def __init__(self, stage: Stage) -> None:
        super().__init__(stage)
        self._cells: dict[str, Document] = {}
        self._sessions = [CausalSession() for _ in range(self.clients)]
        self._handed_over: deque[tuple[Any, Document, dict[str, int]]] = deque(maxlen=20)

    def set_up(self) -> None:
        """Insert the cells; each client writes its own ones."""
        self.stage.create(RANGED)
        client = StageClient(self.stage, 0, self.stage.seed)
        for number in range(self.clients * CELLS_PER_CLIENT):
            identity = client.new_identity(f"cell{number}")
            cell = {"_id": identity, **RANGED.shard_key(client.random, identity)}
            self.stage.collections[RANGED.name].insert_one({**cell, "value": 0, "knew": {}})
            self._cells[f"cell{number}"] = cell

    def step(self, client: StageClient) -> None:
        """Write, read, or take over what another session knows."""
        client.random.choice([self._write, self._read_one, self._read_one, self._read_all, self._take_over])(client)

    def check(self) -> list[str]:
        """In the end everything that any session knows is there."""
        found = {self._name(each): each["value"] for each in self.stage.collections[RANGED.name].find()}
        return [anomaly for session in self._sessions for anomaly in session.knowledge.check(found)]

    def _write(self, client: StageClient) -> None:
        session = self._sessions[client.number]
        own = client.number * CELLS_PER_CLIENT + client.random.randrange(CELLS_PER_CLIENT)
        cell = f"cell{own}"
        value = session.knowledge.values.get(cell, 0) + 1
        update = {"$set": {"value": value, "knew": session.knowledge.values}}
        command = {"update": RANGED.name, "updates": [{"q": self._cells[cell], "u": update}]}
        reply = client.write_whole(command, session=cell)
        assert (reply["n"], reply["nModified"]) == (1, 1), f"the update of {cell} was answered {reply}"
        session.knowledge.learn({cell: value})
        self._continue(session, reply)

    def _read_one(self, client: StageClient) -> None:
        cell = client.random.choice(list(self._cells))
        self._read(client, self._cells[cell], [cell])

    def _read_all(self, client: StageClient) -> None:
        self._read(client, {}, list(self._cells))

    def _read(self, client: StageClient, query: Document, cells: list[str]) -> None:
        session = self._sessions[client.number]
        concern = {"level": "majority", **({"afterClusterTime": session.time} if session.time else {})}
        mode = client.random.choice(MODES)
        if self.stage.shape.members == 1 and mode == "secondary":
            mode = "nearest"
        command = {"find": RANGED.name, "filter": query, "readConcern": concern, "$readPreference": {"mode": mode}}
        reply = client.read(command)
        documents = reply["cursor"]["firstBatch"]
        found = {self._name(document): document["value"] for document in documents}
        where = f"{command} in a session that knows {session.knowledge.values}"
        assert sorted(found) == sorted(cells), f"{where} finds only {sorted(found)}"
        anomalies = session.knowledge.check(found)
        assert not anomalies, f"{where}: {anomalies}"
        for document in documents:
            # This is true for later reads, not for what another shard has returned at the same time.
            session.knowledge.learn({**document["knew"], self._name(document): document["value"]})
        self._continue(session, reply)

    def _continue(self, session: CausalSession, reply: Document) -> None:
        session.advance(reply["operationTime"])
        self._handed_over.append((reply["operationTime"], reply["$clusterTime"], dict(session.knowledge.values)))

    def _take_over(self, client: StageClient) -> None:
        """As an application does with ``advanceClusterTime`` and ``advanceOperationTime``."""
        if not self._handed_over:
            return
        time, cluster_time, values = client.random.choice(list(self._handed_over))
        # Signed: without it, another router would not know of the time.
        client.advance_cluster_time(cluster_time)
        session = self._sessions[client.number]
        session.advance(time)
        session.knowledge.learn(values)

    def _name(self, document: Document) -> str:
        name: str = document["_id"].split("/")[1]
        return name
