"""The donor's commands to the recipient, sent by a test."""

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import count
from typing import Any
from uuid import UUID, uuid4

from bson import Int64, ObjectId
from bson.binary import Binary
from pymongo.errors import OperationFailure

from tests.shardd.migration.recipient.fake_donor import FakeDonor
from tests.shardd.mini_cluster import MAJORITY, Client, Member, MiniCluster

SECONDS_MAX = 60.0
_GOSSIP = ("$clusterTime", "$configTime", "$topologyTime", "operationTime")
_databases = count()


class Receiving:
    """One migration to a shard, from a donor simulated by the test.

    Attributes:
        donor: hands out the documents.
        member: the recipient's only member.
        namespace: the collection, sharded by ``a``.
        session_id: the migration session id of the attempt in progress.
    """

    def __init__(
        self,
        cluster: MiniCluster,
        donor: FakeDonor,
        *,
        key: Mapping[str, Any] | None = None,
        low: object = 0,
        high: object = 100_000,
    ) -> None:
        self.cluster = cluster
        self.donor = donor
        self.member: Member = cluster.shards["sh0"].members[0]
        self.db = f"received{next(_databases)}"
        self.namespace = f"{self.db}.c"
        self.migration_id = uuid4()
        self.key = dict(key or {"a": 1})
        self.range = {"min": dict.fromkeys(self.key, low), "max": dict.fromkeys(self.key, high)}
        self.attempts: list[dict[str, Any]] = []
        self.session_id = ""

    # Commands

    def start(self, *, session_id: str | None = None, **fields: object) -> dict[str, Any]:
        """``_recvChunkStart``, by default of a new attempt; repeated until the daemon is ready for it."""
        if session_id is None:
            session_id = f"donor_sh0_{ObjectId()}"
            attempt = {"sessionId": session_id, "start": datetime.now(UTC), "documents": 0, "bytes": 0}
            self.attempts.append(attempt)
        self.session_id = session_id
        command = self.start_command(**fields)
        reply: dict[str, Any] = self.wait(
            lambda: self.run(command), lambda reply: reply.get("codeName") != "NotWritablePrimary"
        )
        return reply

    def start_command(self, **fields: object) -> dict[str, Any]:
        """``_recvChunkStart`` of the present attempt."""
        return {
            "_recvChunkStart": self.namespace,
            "uuid": Binary.from_uuid(self.migration_id),
            "lsid": {"id": Binary.from_uuid(uuid4()), "uid": b"\0" * 32},
            "txnNumber": Int64(1),
            "sessionId": self.session_id,
            "from": self.donor.connection_string,
            "fromShardName": "donor",
            "toShardName": "sh0",
            **self.range,
            "shardKeyPattern": self.key,
            "secondaryThrottle": False,
            "writeConcern": {},
            "collectionUUID": Binary.from_uuid(self.donor.uuid),
            "attempts": self.attempts,
            **fields,
        }

    def status(self, *, wait: bool = False) -> dict[str, Any]:
        """``_recvChunkStatus``."""
        command = {"_recvChunkStatus": self.namespace, "waitForSteadyOrDone": wait, "sessionId": self.session_id}
        return self.run(command)

    def commit(self) -> dict[str, Any]:
        """``_recvChunkCommit``."""
        command = {"_recvChunkCommit": self.namespace, "acquireCSOnRecipient": True, "sessionId": self.session_id}
        return self.run(command)

    def release(self) -> dict[str, Any]:
        """``_recvChunkReleaseCritSec``."""
        command = {"_recvChunkReleaseCritSec": self.namespace, "sessionId": self.session_id, "writeConcern": MAJORITY}
        return self.run(command)

    def abort(self) -> dict[str, Any]:
        """``_recvChunkAbort``."""
        return self.run({"_recvChunkAbort": self.namespace, "sessionId": self.session_id})

    def finish(self, decision: str) -> dict[str, Any]:
        """``_shardsvrFinishRangeDeletion``."""
        identity = {"migrationId": Binary.from_uuid(self.migration_id), "decision": decision}
        return self.run({"_shardsvrFinishRangeDeletion": self.namespace, **identity, "writeConcern": MAJORITY})

    def run(self, command: Mapping[str, Any]) -> dict[str, Any]:
        """Run a command on the recipient; returns the reply, even of a failed one, without gossiped times."""
        try:
            reply = self.client.admin.command(dict(command), check=False)
        except OperationFailure as failure:
            reply = dict(failure.details or {})
        return {name: value for name, value in reply.items() if name not in _GOSSIP}

    # Results

    def wait_state(self, *states: str) -> dict[str, Any]:
        """The status, once the state is one of these."""
        status: dict[str, Any] = self.wait(self.status, lambda status: status["state"] in states)
        return status

    def wait(self, look: Callable[[], Any], is_reached: Callable[[Any], bool]) -> Any:  # noqa: ANN401 - what look gives
        """The result of ``look``, once it is the expected one."""
        deadline = time.monotonic() + SECONDS_MAX
        while not is_reached(seen := look()):
            assert time.monotonic() < deadline, f"still {seen}"
            time.sleep(0.02)
        return seen

    @property
    def client(self) -> Client:
        """A client of the recipient's daemon."""
        return self.cluster.kept_client(self.member)

    @contextmanager
    def mongod(self) -> Iterator[Client]:
        """A client of the recipient's mongod."""
        with self.member.mongod_client() as client:
            yield client

    def stored(self) -> list[dict[str, Any]]:
        """The collection's documents on the recipient's mongod, by ``_id``."""
        with self.mongod() as client:
            return list(client[self.db].c.find().sort("_id", 1))

    def uuid_here(self) -> UUID:
        """The UUID of the collection on the recipient."""
        with self.mongod() as client:
            (entry,) = client[self.db].list_collections(filter={"name": "c"})
            return UUID(bytes=bytes(entry["info"]["uuid"]))

    def config(self, collection: str) -> list[dict[str, Any]]:
        """The recipient's documents in a collection of ``config``."""
        with self.mongod() as client:
            return list(client.config[collection].find())

    def checkpoint(self) -> dict[str, Any] | None:
        """The recipient's checkpoint of this migration."""
        return self._of_migration("migrationCheckpoints")

    def range_deletion(self) -> dict[str, Any] | None:
        """The recipient's range deletion of this migration."""
        return self._of_migration("rangeDeletions")

    def end(self) -> None:
        """End the migration if it is still in progress."""
        self.abort()
        self.release()
        self.finish("aborted")

    def _of_migration(self, collection: str) -> dict[str, Any] | None:
        found = [each for each in self.config(collection) if UUID(bytes=bytes(each["_id"])) == self.migration_id]
        return found[0] if found else None


def documents(number: int, *, first: int = 0, **fields: object) -> Sequence[dict[str, Any]]:
    """Documents in the usual range."""
    return [{"_id": each, "a": each, **fields} for each in range(first, first + number)]


@contextmanager
def held(donor: FakeDonor, command: str) -> Iterator[threading.Event]:
    """Make the donor hold back its reply to a command until the event is set or the block ends."""
    event = donor.held[command] = threading.Event()
    try:
        yield event
    finally:
        event.set()
        donor.held.pop(command, None)
