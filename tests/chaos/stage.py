"""The stage of a workload: one database of a running cluster, and the clients that use it."""

import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from tests.chaos.history import History
from tests.chaos.operations import Recorder
from tests.chaos.worlds import World, create_world
from tests.local_cluster import Client
from tests.migration.fault_cluster import FaultCluster
from tests.migration.retrying import RetryingClient, Session, Write, answer

if TYPE_CHECKING:
    from bson.timestamp import Timestamp

Document = dict[str, Any]

UNAVAILABLE_SECONDS_MAX: Final = 120.0
"""Waiting longer for a reply is an anomaly, because no fault lasts for more than half a minute."""


ORPHANS_KEPT_SECONDS: Final = 2
"""Minimum seconds for which orphans are kept (``orphanCleanupDelaySecs``)."""


@dataclass(frozen=True)
class Shape:
    """The shape of a cluster.

    Attributes:
        members: the number of members of each shard.
        config_members: the number of config servers.
        routers: the number of routers; the last one is quiet: it changes the placement, and no client uses it.
        has_links: whether daemons reach each other through links that can be delayed and cut.
        shards: the number of shards.
    """

    members: int = 1
    config_members: int = 1
    routers: int = 3
    has_links: bool = False
    shards: int = 2


@dataclass
class Stage:
    """The environment of a workload.

    Attributes:
        database: its own database.
        recorder: records its clients' operations.
        worlds: the sharded collections whose chunks may be moved, initially none.
    """

    cluster: FaultCluster
    shape: Shape
    database: str
    seed: str
    history: History
    recorder: Recorder = field(default_factory=Recorder)
    worlds: list[World] = field(default_factory=list)

    @property
    def admin(self) -> Client:
        """A client of the quiet router, for operations while there are no faults."""
        return self.cluster.router(self.shape.routers - 1)

    @property
    def collections(self) -> Any:  # noqa: ANN401 - a pymongo database
        """The database, through the quiet router."""
        return self.admin[self.database]

    @property
    def read_concern(self) -> Document:
        """The weakest read concern with linearizable reads; with one member there can be no other primary."""
        return {"level": "majority" if self.shape.members == 1 else "linearizable"}

    def is_complete(self, opened: float) -> bool:
        """Whether a cursor open from ``opened``, in seconds of `time.monotonic`, until now must return everything.

        A cursor that outlives the step-down of its mongod misses documents that the next primary gave away and deleted.
        """
        return self.shape.members == 1 or time.monotonic() - opened < ORPHANS_KEPT_SECONDS

    def create(self, *worlds: World) -> None:
        """Create sharded collections, whose chunks are moved from now on."""
        for world in worlds:
            create_world(self.admin, self.database, world)
            self.worlds.append(world)


class StageClient:
    """One client of one workload, used by one thread.

    Attributes:
        number: its number, unique in the workload.
        operations: the number of its completed steps.
        at_cluster_time: the snapshot time in the last cursor reply that had one.
        refusal: the error reply that ended the last scan that did not reach its end; None if there was no reply.
    """

    def __init__(self, stage: Stage, number: int, seed: str) -> None:
        self.stage = stage
        self.number = number
        self.random = random.Random(seed)
        self.operations = 0
        self.at_cluster_time: Timestamp | None = None
        self.refusal: Document | None = None
        self._routers = RetryingClient(stage.cluster.router_addresses[: stage.shape.routers - 1])
        self._sessions: dict[object, Session] = {}
        self._cluster_time: Document = {}
        self._values = 0

    @property
    def resent(self) -> int:
        """The number of commands that had to be sent again."""
        return self._routers.resent

    def begin(self) -> None:
        """Start after the set-up: without its cluster time, a snapshot might be from before it."""
        self._learn(self.stage.admin.admin.command("ping"))

    def close(self) -> None:
        """Close its connections."""
        self._routers.close()

    def new_value(self) -> int:
        """A number not used by any client of the workload before."""
        self._values += 1
        return self._values * 1000 + self.number

    def new_identity(self, kind: str) -> str:
        """Likewise a string, whose first two letters are evenly distributed."""
        return f"{self.random.randrange(256):02x}/{kind}/{self.new_value()}"

    def session(self, key: object) -> Session:
        """The session that this client uses for everything with the same key."""
        return self._sessions.setdefault(key, Session())

    def write(self, command: Document, *, session: object = None) -> Document:
        """Send a retryable write until there is a reply, and return its result.

        Args:
            command: the command, without session and transaction number.
            session: a key; the client uses one session for all writes with the same key.

        Raises:
            WriteRefusedError: the reply was an error, or there was none.
        """
        return answer(self.write_whole(command, session=session))

    def write_whole(self, command: Document, *, session: object = None) -> Document:
        """Likewise, but return the whole reply."""
        write = Write.of(self.stage.database, self._gossip(command), self.session(session))
        self.stage.history.add("write", client=self.number, body=write.body)
        reply = self._routers.run_whole(write, router=self.some_router(), within=UNAVAILABLE_SECONDS_MAX)
        self._learn(reply)
        return reply

    def read(self, command: Document) -> Document:
        """Send a read-only command until there is a reply, and return the whole reply.

        Raises:
            WriteRefusedError: as `write`.
        """
        body, router = self._gossip(command), self.some_router()
        reply = self._routers.read(self.stage.database, body, router=router, within=UNAVAILABLE_SECONDS_MAX)
        self._learn(reply)
        return reply

    def once(self, command: Document, *, router: int | None = None, database: str = "") -> Document | None:
        """Send a command once; None without a reply, in which case the effect of a write is unknown."""
        body = self._gossip(command)
        self.stage.history.add("once", client=self.number, body=body)
        chosen = self.some_router() if router is None else router
        reply = self._routers.once(database or self.stage.database, body, router=chosen)
        self.stage.history.add("answered", client=self.number, reply=None if reply is None else _told(reply))
        if reply is not None:
            self._learn(reply)
        return reply

    def scan(self, command: Document, batch_size: int) -> Iterator[list[Document] | None]:
        """The batches of a cursor; the last one is None if the cursor was lost or refused."""
        router = self.some_router()
        body = {**command, "batchSize": batch_size}
        if "aggregate" in command:
            body = {**command, "cursor": {"batchSize": batch_size}}
        collection, batch = next(iter(command.values())), "firstBatch"
        while True:
            reply = self.once(body, router=router)
            if reply is None or reply.get("ok") != 1:
                self.refusal = reply
                yield None
                return
            self.at_cluster_time = reply["cursor"].get("atClusterTime")
            yield reply["cursor"][batch]
            if not reply["cursor"]["id"]:
                return
            body = {"getMore": reply["cursor"]["id"], "collection": collection, "batchSize": batch_size}
            batch = "nextBatch"

    def some_router(self) -> int:
        """The index of a random router that serves clients."""
        return self.random.randrange(self.stage.shape.routers - 1)

    def _gossip(self, command: Document) -> Document:
        """Add the newest known cluster time, as drivers do."""
        return {**command, "$clusterTime": self._cluster_time} if self._cluster_time else command

    def _learn(self, reply: Document) -> None:
        if "$clusterTime" in reply:
            self.advance_cluster_time(reply["$clusterTime"])

    def advance_cluster_time(self, told: Document) -> None:
        """Gossip this time from now on, if it is newer."""
        if not self._cluster_time or told["clusterTime"] > self._cluster_time["clusterTime"]:
            self._cluster_time = told


def is_done(reply: Document | None) -> bool:
    """Whether a command that was sent once got a reply without errors."""
    return reply is not None and reply.get("ok") == 1 and not reply.keys() & {"writeErrors", "writeConcernError"}


def scanned(batches: Sequence[list[Document] | None]) -> list[Document] | None:
    """All documents of a scan; None if it did not reach its end."""
    found: list[Document] = []
    for batch in batches:
        if batch is None:
            return None
        found += batch
    return found


def _told(reply: Document) -> Document:
    """A reply for the history, with only the identities of its documents."""
    cursor = reply.get("cursor")
    if not isinstance(cursor, dict):
        return reply
    documents = cursor.get("firstBatch") or cursor.get("nextBatch") or []
    return {"cursor": cursor.get("id"), "found": [document.get("_id") for document in documents]}
