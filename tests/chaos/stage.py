"""Where a workload plays: one database of a running cluster, and the clients that work on it."""

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
"""Longer without an answer is an anomaly: no fault lasts for more than half a minute."""


ORPHANS_KEPT_SECONDS: Final = 2
"""How long at least documents are kept that were given away (``orphanCleanupDelaySecs``)."""


@dataclass(frozen=True)
class Shape:
    """What kind of cluster it is.

    Attributes:
        members: of each shard.
        config_members: of the config servers.
        routers: the last one is quiet: it makes all changes of placement, and no client ever asks it.
        has_links: whether daemons reach each other through links that can be delayed and cut.
    """

    members: int = 1
    config_members: int = 1
    routers: int = 3
    has_links: bool = False


@dataclass
class Stage:
    """What a workload has to do with.

    Attributes:
        database: its own one.
        recorder: what its clients did.
        worlds: the sharded collections whose chunks are to be moved, to begin with none.
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
        """A client of the quiet router, for what is done while there are no faults."""
        return self.cluster.router(self.shape.routers - 1)

    @property
    def collections(self) -> Any:  # noqa: ANN401 - a pymongo database
        """The database, through the quiet router."""
        return self.admin[self.database]

    @property
    def read_concern(self) -> Document:
        """The weakest one whose reads are linearizable: with one member nobody else can be primary."""
        return {"level": "majority" if self.shape.members == 1 else "linearizable"}

    def is_complete(self, opened: float) -> bool:
        """Whether a cursor that was open from ``opened``, in seconds of `time.monotonic`, until now shows everything.

        One that outlives the step-down of its mongod misses what the next primary has given away and deleted.
        """
        return self.shape.members == 1 or time.monotonic() - opened < ORPHANS_KEPT_SECONDS

    def create(self, *worlds: World) -> None:
        """Create sharded collections, which are moved from now on."""
        for world in worlds:
            create_world(self.admin, self.database, world)
            self.worlds.append(world)


class StageClient:
    """One client of one workload; of one thread.

    Attributes:
        number: distinguishes it from all other clients of the workload.
        operations: how many steps it has done.
        at_cluster_time: of the last cursor reply that named the time of its snapshot.
    """

    def __init__(self, stage: Stage, number: int, seed: str) -> None:
        self.stage = stage
        self.number = number
        self.random = random.Random(seed)
        self.operations = 0
        self.at_cluster_time: Timestamp | None = None
        self._routers = RetryingClient(stage.cluster.router_addresses[: stage.shape.routers - 1])
        self._sessions: dict[object, Session] = {}
        self._cluster_time: Document = {}
        self._values = 0

    @property
    def resent(self) -> int:
        """How many commands had to be sent again."""
        return self._routers.resent

    def begin(self) -> None:
        """Work after all that was set up: without its cluster time, a snapshot might be of before it."""
        self._learn(self.stage.admin.admin.command("ping"))

    def close(self) -> None:
        """Close its connections."""
        self._routers.close()

    def new_value(self) -> int:
        """A number that no client of the workload has had."""
        self._values += 1
        return self._values * 1000 + self.number

    def new_identity(self, kind: str) -> str:
        """Likewise a string; its first two letters are evenly distributed."""
        return f"{self.random.randrange(256):02x}/{kind}/{self.new_value()}"

    def write(self, command: Document, *, session: object = None) -> Document:
        """Send a retryable write until it is answered, and return what the answer says.

        Args:
            command: without session and number.
            session: clients keep one session for each of these, and so for whatever is written with it.

        Raises:
            WriteRefusedError: it was answered with an error, or not at all.
        """
        write = Write.of(self.stage.database, self._gossip(command), self._sessions.setdefault(session, Session()))
        self.stage.history.add("write", client=self.number, body=write.body)
        reply = self._routers.run_whole(write, router=self._router(), within=UNAVAILABLE_SECONDS_MAX)
        self._learn(reply)
        return answer(reply)

    def read(self, command: Document) -> Document:
        """Send a command that only reads until it is answered, and return the whole reply.

        Raises:
            WriteRefusedError: as `write`.
        """
        body, router = self._gossip(command), self._router()
        reply = self._routers.read(self.stage.database, body, router=router, within=UNAVAILABLE_SECONDS_MAX)
        self._learn(reply)
        return reply

    def once(self, command: Document, *, router: int | None = None, database: str = "") -> Document | None:
        """Send a command once; None when nobody answered. Of a writing command nobody knows then what it did."""
        body = self._gossip(command)
        self.stage.history.add("once", client=self.number, body=body)
        chosen = self._router() if router is None else router
        reply = self._routers.once(database or self.stage.database, body, router=chosen)
        self.stage.history.add("answered", client=self.number, reply=None if reply is None else _told(reply))
        if reply is not None:
            self._learn(reply)
        return reply

    def scan(self, command: Document, batch_size: int) -> Iterator[list[Document] | None]:
        """The batches of a cursor as they come; None, as the last one, when the cursor was lost or refused."""
        router = self._router()
        body = {**command, "batchSize": batch_size}
        if "aggregate" in command:
            body = {**command, "cursor": {"batchSize": batch_size}}
        collection, batch = next(iter(command.values())), "firstBatch"
        while True:
            reply = self.once(body, router=router)
            if reply is None or reply.get("ok") != 1:
                yield None
                return
            self.at_cluster_time = reply["cursor"].get("atClusterTime")
            yield reply["cursor"][batch]
            if not reply["cursor"]["id"]:
                return
            body = {"getMore": reply["cursor"]["id"], "collection": collection, "batchSize": batch_size}
            batch = "nextBatch"

    def _router(self) -> int:
        return self.random.randrange(self.stage.shape.routers - 1)

    def _gossip(self, command: Document) -> Document:
        """Drivers pass on the newest cluster time they know."""
        return {**command, "$clusterTime": self._cluster_time} if self._cluster_time else command

    def _learn(self, reply: Document) -> None:
        told = reply.get("$clusterTime")
        if told and (not self._cluster_time or told["clusterTime"] > self._cluster_time["clusterTime"]):
            self._cluster_time = told


def is_done(reply: Document | None) -> bool:
    """Whether a command that was sent once was answered without any error."""
    return reply is not None and reply.get("ok") == 1 and not reply.keys() & {"writeErrors", "writeConcernError"}


def scanned(batches: Sequence[list[Document] | None]) -> list[Document] | None:
    """All documents of a scan, None if it did not get to its end."""
    found: list[Document] = []
    for batch in batches:
        if batch is None:
            return None
        found += batch
    return found


def _told(reply: Document) -> Document:
    """A reply as the history keeps it: of its documents only the identities."""
    cursor = reply.get("cursor")
    if not isinstance(cursor, dict):
        return reply
    documents = cursor.get("firstBatch") or cursor.get("nextBatch") or []
    return {"cursor": cursor.get("id"), "found": [document.get("_id") for document in documents]}
