"""Retryable writes as raw commands, sent through several routers and, for comparison, to a lone mongod."""

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from bson.binary import Binary
from bson.int64 import Int64

from tests.integration.raw_client import RawClient, raw_client
from tests.integration.sharded import Document
from tests.local_cluster import RunningCluster

COLLECTION: Final = "ranged"

_VOLATILE: Final = frozenset({"$clusterTime", "operationTime", "electionId", "opTime"})


class RetryingSession:
    """One session, used on the routers and, with the same commands, on a lone mongod."""

    def __init__(self, routers: list[RawClient], mongod: RawClient, database: str) -> None:
        self.routers = routers
        self._mongod = mongod
        self._database = database
        self._lsid = {"id": Binary.from_uuid(uuid.uuid4())}

    def run(self, command: Document, number: int, *, router: int = 0, db: str | None = None) -> Document:
        """The reply of a router."""
        numbered = {**command, "lsid": self._lsid, "txnNumber": Int64(number)}
        return stable(self.routers[router].command(numbered, db=db or self._database))

    def on_mongod(self, command: Document, number: int, *, db: str | None = None) -> Document:
        """The reply of the lone mongod."""
        numbered = {**command, "lsid": self._lsid, "txnNumber": Int64(number)}
        return stable(self._mongod.command(numbered, db=db or self._database))

    def documents_on_mongod(self) -> list[Document]:
        """All documents that the lone mongod has."""
        reply = self._mongod.command({"find": COLLECTION, "sort": {"_id": 1}}, db=self._database)
        found: list[Document] = reply["cursor"]["firstBatch"]
        return found

    def compare_in_transaction(self, command: Document, number: int, *, db: str | None = None) -> None:
        """Run a command of a transaction; its reply must equal the lone mongod's except for the recovery token."""
        expected = self.on_mongod(command, number, db=db)
        found = self.run(command, number, db=db)
        assert "recoveryToken" in found, found
        assert {name: value for name, value in found.items() if name != "recoveryToken"} == expected, (found, expected)

    def compare(self, command: Document, number: int, *, router: int = 0) -> Document:
        """Return the reply of a router, which must equal the lone mongod's."""
        expected = self.on_mongod(command, number)
        found = self.run(command, number, router=router)
        assert found == expected, (found, expected)
        return found


def stable(reply: Document) -> Document:
    """A reply without the fields that differ from run to run."""
    return {name: value for name, value in reply.items() if name not in _VOLATILE}


@contextmanager
def retrying_session(cluster: RunningCluster, database: str) -> Iterator[RetryingSession]:
    """A session on both routers and on a mongod that has no data of shards."""
    with (
        raw_client(cluster.address("router.0")) as first,
        raw_client(cluster.address("router.1")) as second,
        raw_client(cluster.address("config.0.mongod")) as mongod,
    ):
        yield RetryingSession([first, second], mongod, database)
        mongod.command({"dropDatabase": 1}, db=database)


def inserts(*keys: int, **fields: Any) -> Document:  # noqa: ANN401 - fields of any type
    return {"insert": COLLECTION, "documents": [{"_id": key, "key": key} for key in keys], **fields}


def increments(*keys: int, **fields: Any) -> Document:  # noqa: ANN401
    updates = [{"q": {"_id": key, "key": key}, "u": {"$inc": {"n": 1}}} for key in keys]
    return {"update": COLLECTION, "updates": updates, **fields}


def increments_by_id(*keys: int, **fields: Any) -> Document:  # noqa: ANN401
    updates = [{"q": {"_id": key}, "u": {"$inc": {"n": 1}}} for key in keys]
    return {"update": COLLECTION, "updates": updates, **fields}


def upserts(*keys: int, **fields: Any) -> Document:  # noqa: ANN401
    updates = [{"q": {"_id": key, "key": key}, "u": {"$inc": {"n": 1}}, "upsert": True} for key in keys]
    return {"update": COLLECTION, "updates": updates, **fields}


def deletes(*keys: int, **fields: Any) -> Document:  # noqa: ANN401
    return {"delete": COLLECTION, "deletes": [{"q": {"_id": key, "key": key}, "limit": 1} for key in keys], **fields}


def deletes_by_id(*keys: int, **fields: Any) -> Document:  # noqa: ANN401
    return {"delete": COLLECTION, "deletes": [{"q": {"_id": key}, "limit": 1} for key in keys], **fields}


def modify(key: int, **fields: Any) -> Document:  # noqa: ANN401
    return {"findAndModify": COLLECTION, "query": {"_id": key, "key": key}, **fields}
