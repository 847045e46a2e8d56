"""Transactions on the catalog, through which all changes of placement are written, and the changelog.

A mongod that was not started as a config server refuses multi-document transactions on the config database
(OperationNotSupportedInTransaction). So a transaction does what MongoDB 6.0's config server does to change chunks. It
reads, computes, and writes everything in one ``applyOps``. mongod applies that atomically, and only if its
``preCondition`` holds: each document used in the computation is unchanged.

The work of a transaction is a function from the current catalog to writes. It may run several times, always from the
start, so it must not have effects outside the transaction.

`gossip` exchanges the times in messages: the vector clock of the config servers is their mongod's. `ChangeLog` writes
``config.changelog`` and ``config.actionlog``.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, Protocol, TypeVar

from bson.objectid import ObjectId

from shardwright.daemon.metrics import Counter
from shardwright.daemon.sidecar.noop_writer import wait_for_majority
from shardwright.sharding.catalog.documents import ChangeLogEntry
from shardwright.sharding.clock import CLUSTER_TIME, CONFIG_TIME, TOPOLOGY_TIME
from shardwright.wire.error_codes import Category, ErrorCode, has_category
from shardwright.wire.errors import BackendError, CommandError, check_writes
from shardwright.wire.logger import get_logger
from shardwright.wire.rawbson import encode_document, encode_elements
from shardwright.wire.transport.cursor import DecodedCursor

logger = get_logger("configd.transactions")

changelog_logger = get_logger("configd.changelog")

T = TypeVar("T")

ATTEMPTS_MAX: Final = 10
"""Maximum attempts of a transaction that conflicts with other writes."""

MAJORITY: Final = {"w": "majority"}

_DB: Final = "config"
_ABSENT: Final = {"_id": {"$exists": False}}

_NAMED_BY_THE_REST: Final = {"chunks": ("min", "max")}
"""Fields that change only together with another field or the size of the document.

A chunk that is divided or merged has another version, and refined bounds have more fields. A command has no room for
the bounds of several chunks, which may be as large as a document, and can identify the chunks without them.
"""

_SHARD: Final = "config"


class Commands(Protocol):
    """Runner of commands on the primary mongod."""

    async def command(self, db: str, command: Mapping[str, Any]) -> dict[str, Any]:
        """Run a command and return its decoded reply.

        Raises:
            CommandError: the reply says ``ok: 0``.
            BackendError: mongod does not answer.
        """


class TransactionConflictError(Exception):
    """Failure of a transaction that wrote nothing: a document that it read has changed, or its snapshot is gone."""


class Transaction:
    """Reads from one snapshot of the config database, and writes that are buffered until the commit."""

    def __init__(self, mongod: Commands) -> None:
        self._mongod = mongod
        self._snapshot: dict[str, Any] = {"level": "snapshot"}
        self._conditions: list[dict[str, Any]] = []
        self._operations: list[dict[str, Any]] = []
        self._found: dict[tuple[str, bytes], Mapping[str, Any]] = {}

    async def find(
        self,
        collection: str,
        query: Mapping[str, Any],
        *,
        sort: Mapping[str, int] | None = None,
        projection: Mapping[str, Any] | None = None,
        limit: int = 0,
    ) -> list[dict[str, Any]]:
        """Return the documents that match, at most ``limit`` of them if that is not 0.

        The commit checks only documents read with `find_one`.
        """
        command: dict[str, Any] = {"find": collection, "filter": query, "limit": limit}
        if sort is not None:
            command["sort"] = sort
        if projection is not None:
            command["projection"] = projection
        return await self._read(command)

    async def find_one(
        self, collection: str, query: Mapping[str, Any], *, sort: Mapping[str, int] | None = None
    ) -> dict[str, Any] | None:
        """Return the first document that matches, or None. The commit fails if this result has changed."""
        command: dict[str, Any] = {"find": collection, "filter": query, "limit": 1}
        condition: dict[str, Any] = {"query": query}
        if sort is not None:
            command["sort"] = condition["orderby"] = sort
        documents = await self._read(command)
        found = documents[0] if documents else None
        unchanged = _ABSENT if found is None else self._unchanged(collection, found)
        self._conditions.append({"ns": f"{_DB}.{collection}", "q": condition, "res": unchanged})
        return found

    def put(self, collection: str, documents: Iterable[Mapping[str, Any]]) -> None:
        """Insert documents, or replace documents with the same ``_id``.

        For a document read with `find_one`, only the changed fields are written. Otherwise a large one, which the
        condition contains already, would be in the command twice.
        """
        for document in documents:
            place = {"ns": f"{_DB}.{collection}", "o2": {"_id": document["_id"]}}
            former = self._found.get(_key(collection, document))
            changed = None if former is None else _changed_fields(former, document)
            if changed:
                self._operations.append({"op": "u", **place, "o": {"$v": 2, "diff": changed}})
            else:
                self._operations.append({"op": "u", "b": True, **place, "o": document})
            if former is not None:
                self._found[_key(collection, document)] = document

    def delete(self, collection: str, ids: Iterable[object]) -> None:
        """Delete documents by their ``_id``."""
        self._operations += [{"op": "d", "ns": f"{_DB}.{collection}", "o": {"_id": each}} for each in ids]

    async def delete_matching(self, collection: str, query: Mapping[str, Any]) -> None:
        """Delete the documents that match in the snapshot."""
        found = await self.find(collection, query, projection={"_id": 1})
        self.delete(collection, (document["_id"] for document in found))

    async def commit(self) -> None:
        """Execute the writes with write concern majority.

        Raises:
            TransactionConflictError: nothing was written.
            CommandError: nothing was written; or, with a write concern error's code, not on a majority.
            BackendError: mongod is gone; it is unknown whether anything was written.
        """
        if not self._operations:
            return
        command = {"applyOps": self._operations, "preCondition": self._conditions, "writeConcern": MAJORITY}
        try:
            reply = await self._mongod.command("admin", command)
        except CommandError as error:
            if "whatFailed" in error.extra:
                raise TransactionConflictError(str(error.extra["whatFailed"]["ns"])) from error
            raise
        check_writes(reply)

    def _unchanged(self, collection: str, found: Mapping[str, Any]) -> dict[str, Any]:
        """Build the condition that a query still finds a document; only the first such condition contains all of it."""
        key = _key(collection, found)
        if key in self._found:
            return {"_id": {"$eq": found["_id"]}}
        self._found[key] = found
        return _equal_document(found, _NAMED_BY_THE_REST.get(collection, ()))

    async def _read(self, command: Mapping[str, Any]) -> list[dict[str, Any]]:
        in_snapshot = {**command, "readConcern": self._snapshot}
        async with DecodedCursor(self._mongod.command, _DB, in_snapshot) as cursor:
            try:
                first = await cursor.next_batch()
                self._snapshot = {"level": "snapshot", "atClusterTime": first.cursor["atClusterTime"]}
                return first.documents() + await cursor.all_documents()
            except CommandError as error:
                if has_category(error.code, Category.SNAPSHOT):
                    raise TransactionConflictError(f"{_DB}.{command['find']}") from error
                raise


def _key(collection: str, document: Mapping[str, Any]) -> tuple[str, bytes]:
    return collection, encode_elements({"_id": document["_id"]})


def _equal_document(found: Mapping[str, Any], left_out: Sequence[str]) -> dict[str, Any]:
    """Build the condition that a document equals ``found``, without the fields in ``left_out``."""
    rest: object = "$$ROOT"
    for name in left_out:
        rest = {"$unsetField": {"field": name, "input": rest}}
    same_rest = {"$eq": [rest, {"$literal": {name: found[name] for name in found if name not in left_out}}]}
    if not left_out:
        return {"$expr": same_rest}
    return {"$expr": {"$and": [same_rest, {"$eq": [{"$bsonSize": "$$ROOT"}, len(encode_document(found))]}]}}


def _changed_fields(former: Mapping[str, Any], document: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the changes from one document to another as in an oplog entry with ``$v: 2``.

    They are the deleted, updated and inserted fields. The result is empty if the documents are equal, or if the changes
    would produce another order of fields: inserted ones come last.
    """
    kept = [name for name in former if name in document]
    if list(document)[: len(kept)] != kept:
        return {}
    changed = {
        "d": {name: False for name in former if name not in document},
        "u": {
            name: value
            for name, value in document.items()
            if name in former and encode_elements({name: value}) != encode_elements({name: former[name]})
        },
        "i": {name: value for name, value in document.items() if name not in former},
    }
    return {kind: fields for kind, fields in changed.items() if fields}


async def check_shard_exists(transaction: Transaction, shard_id: str) -> None:
    """Make a transaction that places something on a shard fail if the shard is removed before the commit.

    Raises ShardNotFound if it was removed already.
    """
    if await transaction.find_one("shards", {"_id": shard_id}) is None:
        raise CommandError(ErrorCode.ShardNotFound, f"Shard {shard_id} does not exist")


async def run_transaction(
    mongod: Commands, work: Callable[[Transaction], Awaitable[T]], conflicts: Counter | None = None
) -> T:
    """Run ``work`` and commit its writes with write concern majority; returns its result.

    The work is repeated if it conflicts with other writes, or if mongod discards its snapshot during the reads. There
    are at most `ATTEMPTS_MAX` attempts; ``conflicts`` counts the failed ones.

    Raises:
        CommandError: from ``work``, nothing was written; WriteConflict, all attempts failed; or see
            `Transaction.commit`.
        BackendError: see `Transaction.commit`.
    """
    for attempt in range(1, ATTEMPTS_MAX + 1):
        transaction = Transaction(mongod)
        try:
            result = await work(transaction)
            await transaction.commit()
        except TransactionConflictError as conflict:
            if conflicts is not None:
                conflicts.add()
            logger.info("Retrying a transaction", attempt=attempt, namespace=str(conflict))
            await wait_for_majority(mongod.command)  # so that the next snapshot includes those writes
        else:
            return result
    raise CommandError(ErrorCode.WriteConflict, f"The catalog kept changing during {ATTEMPTS_MAX} attempts to write it")


_CLUSTER_TIME = CLUSTER_TIME.decode()


async def gossip(mongod: Commands, told: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the times of one moment; empty if mongod has stepped down or is gone.

    The config time is the time of the newest majority-committed catalog: the operation time of a majority read. The
    topology time is the latest in ``config.shards``.

    Args:
        told: the ``$clusterTime`` of the answered request; mongod is advanced to it first.
    """
    find: dict[str, Any] = {
        "find": "shards",
        "sort": {"topologyTime": -1},
        "projection": {"topologyTime": 1},
        "limit": 1,
        "singleBatch": True,
        "readConcern": {"level": "majority"},
    }
    if told is not None:
        find[_CLUSTER_TIME] = told
    try:
        reply = await mongod.command("config", find)
    except (BackendError, CommandError):
        return {}  # the command has been executed, and its reply matters more
    times = {_CLUSTER_TIME: reply[_CLUSTER_TIME], CONFIG_TIME.decode(): reply["operationTime"]}
    for shard in reply["cursor"]["firstBatch"]:
        if "topologyTime" in shard:
            times[TOPOLOGY_TIME.decode()] = shard["topologyTime"]
    return times


class ChangeLog:
    """Writer of changes after their commit, as in MongoDB, because transactions cannot write to capped collections.

    ``server`` is ``host:port`` of this daemon.
    """

    def __init__(self, mongod: Commands, server: str) -> None:
        self._mongod = mongod
        self._server = server

    async def log_changes(
        self, what: str, namespace: str, details: Sequence[Mapping[str, Any]], *, client_address: str = ""
    ) -> None:
        """Record changes to the catalog, with one entry for each.

        A failure is only logged, because the changes have already been made.
        """
        await self._insert("changelog", [self._entry(what, namespace, each, client_address) for each in details])

    async def log_action(self, what: str, details: Mapping[str, Any], *, client_address: str = "") -> None:
        """Record an action, such as turning the balancer off."""
        await self._insert("actionlog", [self._entry(what, "", details, client_address)])

    def _entry(self, what: str, namespace: str, details: Mapping[str, Any], client_address: str) -> ChangeLogEntry:
        # BSON dates have milliseconds.
        time = datetime.now(UTC).replace(tzinfo=None)
        time = time.replace(microsecond=time.microsecond // 1000 * 1000)
        return ChangeLogEntry(
            id=ChangeLogEntry.make_id(self._server, time, ObjectId()),
            server=self._server,
            shard=_SHARD,
            client_address=client_address,
            time=time,
            what=what,
            namespace=namespace,
            details=details,
        )

    async def _insert(self, collection: str, entries: Sequence[ChangeLogEntry]) -> None:
        documents = [entry.to_document() for entry in entries]
        try:
            await self._mongod.command(
                "config", {"insert": collection, "documents": documents, "writeConcern": MAJORITY}
            )
        except (CommandError, BackendError) as error:
            changelog_logger.warning(
                "Could not write to the changelog",
                what=entries[0].what,
                namespace=entries[0].namespace,
                error=str(error),
            )
