"""Snapshots and causal reads of a chain (see `tests.chaos.checkers.snapshots`) whose links are on all shards."""

import time
from collections import deque
from typing import Any, Final

from tests.chaos.checkers.snapshots import check_advance, check_chain
from tests.chaos.stage import Document, Stage, StageClient, scanned
from tests.chaos.workloads.base import Workload
from tests.chaos.worlds import KEYS, RANGED

LENGTH: Final = 100
CHAIN: Final = RANGED

TOO_OLD: Final = frozenset({239, 386})
"""SnapshotTooOld and StaleChunkHistory: there is no guarantee for times long ago or before a split."""


class Snapshots(Workload):
    """See the module."""

    name = "snapshots"
    clients = 4

    def __init__(self, stage: Stage) -> None:
        super().__init__(stage)
        self._raised = 0
        self._sessions: dict[int, tuple[Document, list[tuple[int, int]]]] = {}
        self._seen: deque[tuple[Any, list[tuple[int, int]]]] = deque(maxlen=20)

    def set_up(self) -> None:
        """Insert the chain, its links all over the range of keys."""
        self.stage.create(CHAIN)
        links = [{"_id": f"link/{n}", "a": _place(n), "n": n, "value": 0} for n in range(LENGTH)]
        self.stage.collections[CHAIN.name].insert_many(links)

    def step(self, client: StageClient) -> None:
        """The first client raises links; the others read."""
        if client.number == 0:
            self._raise(client)
        else:
            client.random.choice([self._read_snapshot, self._read_again, self._read_causally])(client)

    def check(self) -> list[str]:
        """A last snapshot."""
        collection = self.stage.collections[CHAIN.name]
        return check_chain([(link["n"], link["value"]) for link in collection.find()], LENGTH)

    def _raise(self, client: StageClient) -> None:
        turn, position = divmod(self._raised, LENGTH)
        query = {"_id": f"link/{position}", "a": _place(position)}
        said = client.write({"update": CHAIN.name, "updates": [{"q": query, "u": {"$set": {"value": turn + 1}}}]})
        assert said == {"n": 1, "nModified": 1}, f"the update of {query} was answered {said}"
        self._raised += 1

    def _read_snapshot(self, client: StageClient) -> None:
        """At a time that the cluster chooses."""
        command = {"find": CHAIN.name, "readConcern": {"level": "snapshot"}}
        found, time_of_read = self._scan(client, command)
        if found is None:
            return
        anomalies = check_chain(found, LENGTH)
        assert not anomalies, f"{command} at {time_of_read}: {anomalies}"
        if time_of_read is not None:
            self._seen.append((time_of_read, found))

    def _read_again(self, client: StageClient) -> None:
        """At a time of before: the same documents as then."""
        if not self._seen:
            return
        at, before = client.random.choice(list(self._seen))
        command = {"find": CHAIN.name, "readConcern": {"level": "snapshot", "atClusterTime": at}}
        found, _ = self._scan(client, command)
        if found is not None:
            anomalies = check_chain(found, LENGTH)
            assert not anomalies, f"{command}: {anomalies}"
            assert sorted(found) == sorted(before), f"two snapshots at {at} differ: {sorted(set(found) ^ set(before))}"

    def _read_causally(self, client: StageClient) -> None:
        """After what the session has read before."""
        after, before = self._sessions.get(client.number, ({}, []))
        command = {"find": CHAIN.name, "batchSize": 1000, "readConcern": {"level": "majority", **after}}
        reply = client.read(command)
        found = [(link["n"], link["value"]) for link in reply["cursor"]["firstBatch"]]
        anomalies = check_advance(before, found)
        assert not anomalies, f"{command}: {anomalies}"
        self._sessions[client.number] = ({"afterClusterTime": reply["operationTime"]}, found)

    def _scan(self, client: StageClient, command: Document) -> tuple[list[tuple[int, int]] | None, Any]:
        """Read a snapshot in batches with pauses between them; return its documents and its time."""
        batches, at = [], None
        for batch in client.scan(command, client.random.choice([7, 30, 1000])):
            batches.append(batch)
            at = client.at_cluster_time or at
            time.sleep(client.random.choice([0, 0, 0.05]))
        found = scanned(batches)
        if found is None:
            return None, None
        return [(link["n"], link["value"]) for link in found], at


def _place(position: int) -> int:
    """Neighbours in the chain are far apart in the range of keys."""
    return position * 389 % KEYS
