"""A transaction on several shards, with the commands that a router would send."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any
from uuid import uuid4

from bson import Int64
from bson.binary import Binary

from tests.integration.raw_client import RawClient
from tests.shardd.mini_cluster import MAJORITY, Client, MiniCluster

COLLECTION = "c"
_values = count()
_GOSSIP = ("$clusterTime", "$configTime", "$topologyTime", "operationTime", "electionId", "opTime", "readOnly")


class HandMadeTransaction:
    """One transaction; the shard of its first statement is the coordinator.

    Args:
        cluster: the cluster.
        db: the database of all its collections.
        lsid: its session, by default a new one.
        number: its number in the session.

    Attributes:
        fields: what all its commands have.
        value: what its documents have as ``value``.
        participants: the shards so far.
    """

    def __init__(self, cluster: MiniCluster, db: str, *, lsid: dict[str, Any] | None = None, number: int = 1) -> None:
        self.cluster = cluster
        self.db = db
        self.lsid = lsid or {"id": Binary.from_uuid(uuid4())}
        self.fields: dict[str, Any] = {"lsid": self.lsid, "txnNumber": Int64(number), "autocommit": False}
        self.value = next(_values)
        self.participants: list[str] = []
        self._connections: list[RawClient] = []

    def close(self) -> None:
        """Close its connections."""
        while self._connections:
            self._connections.pop().socket.close()

    def send(
        self, shard: str, command: dict[str, Any], *, db: str = "admin", member: int = 0, wait: bool = True
    ) -> dict[str, Any]:
        """Run one of its commands on a member of a shard; returns the reply without gossiped times."""
        connection = RawClient(self.cluster.shards[shard].members[member].address)
        self._connections.append(connection)
        connection.send_command({**command, **self.fields}, db=db)
        return without_gossip(connection.receive_reply()) if wait else {}

    def insert(self, *shards: str, member: int = 0) -> None:
        """Insert a document on each of some shards."""
        for shard in shards:
            insert: dict[str, Any] = {"insert": COLLECTION, "documents": [{"value": self.value}]}
            if shard not in self.participants:
                self.participants.append(shard)
                insert |= {"startTransaction": True, "readConcern": {"level": "local"}}
            if shard == self.participants[0]:
                insert["coordinator"] = True
            reply = self.send(shard, insert, db=self.db, member=member)
            assert reply == {"n": 1, "ok": 1.0}, reply

    def commit_command(self, participants: Iterable[str] | None = None) -> dict[str, Any]:
        """The request to commit, by default with all participants."""
        shards = self.participants if participants is None else participants
        return {"coordinateCommitTransaction": 1, "participants": [{"shardId": each} for each in shards]}

    def commit(self, participants: Iterable[str] | None = None, *, shard: str | None = None, **fields: Any) -> Any:  # noqa: ANN401 - whatever the test sends
        """Have its coordinator, or another shard, commit it; returns the reply."""
        return self.send(shard or self.participants[0], {**self.commit_command(participants), **fields})

    @contextmanager
    def committing(self, participants: Iterable[str] | None = None, *, member: int = 0) -> Iterator[RawClient]:
        """Run the coordinator's commit during the block; the reply is received from the yielded connection."""
        connection = RawClient(self.cluster.shards[self.participants[0]].members[member].address)
        self._connections.append(connection)
        connection.send_command({**self.commit_command(participants), **self.fields}, db="admin")
        yield connection

    def is_visible(self, shard: str, member: int = 0) -> bool:
        """Whether a shard has its document, once it is decided there."""
        with self.cluster.shards[shard].members[member].mongod_client() as mongod:
            # A local read after the prepare waits for its end.
            concern = {"level": "linearizable"}
            find = {"find": COLLECTION, "filter": {"value": self.value}, "readConcern": concern, "maxTimeMS": 60_000}
            return bool(mongod[self.db].command(find)["cursor"]["firstBatch"])


def without_gossip(reply: dict[str, Any]) -> dict[str, Any]:
    """A reply without the times that every reply has."""
    return {name: value for name, value in reply.items() if name not in _GOSSIP}


@contextmanager
def transaction(cluster: MiniCluster, db: str, **options: Any) -> Iterator[HandMadeTransaction]:  # noqa: ANN401
    """A transaction whose connections are closed after the block."""
    made = HandMadeTransaction(cluster, db, **options)
    try:
        yield made
    finally:
        made.close()


def create_collections(cluster: MiniCluster, db: str) -> None:
    """Create the collection on every shard, because a transaction that creates one cannot prepare."""
    for each in cluster.shards.values():
        with each.client() as client:  # of the set, since any member may be primary
            client[db].command("create", COLLECTION, writeConcern=MAJORITY)


def documents(client: Client) -> list[dict[str, Any]]:
    """The documents of the coordinators that a shard has."""
    return list(client.config.transaction_coordinators.find())


def prepared_transactions(client: Client) -> list[dict[str, Any]]:
    """The transactions that are prepared on a mongod."""
    return list(client.config.transactions.find({"state": "prepared"}))
