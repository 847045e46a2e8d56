"""Checkpoints, positions and the lease at the target; only the owner of the lease can write.

Every transaction that writes documents also updates a document with the lease's term, on condition that the term is its
own. A process that takes over first raises the term in these documents. That waits for the former process's open
transactions, and makes its later ones fail.
"""

import asyncio
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import groupby
from typing import Any, Final

from bson.errors import InvalidBSON
from bson.max_key import MaxKey
from bson.timestamp import Timestamp
from pymongo import DeleteMany, DeleteOne, InsertOne, ReplaceOne, UpdateOne
from pymongo.asynchronous.client_session import AsyncClientSession
from pymongo.errors import BulkWriteError, OperationFailure, PyMongoError
from pymongo.read_concern import ReadConcern

from shardwright.sync.changes import Value
from shardwright.sync.checkpoint import Agreement, Checkpoint, Session, agreement, is_change, recorded
from shardwright.sync.ends import MAJORITY, USER_WRITES_BLOCKED, End, check_cancellation, is_transient, repeated
from shardwright.sync.replication import shown_error
from shardwright.wire import rawbson
from shardwright.wire.logger import get_logger

SYNC: Final = "sync"
RANGES: Final = "sync.ranges"
LEASES: Final = "sync.leases"
FAILURES: Final = "sync.failures"
VERIFICATION: Final = "sync.verification"

LEASE_SECONDS: Final = 10.0
RENEW_SECONDS: Final = 2.0

FAILURES_AT_ONCE: Final = 1000
"""Maximum number of refused documents that are read, or shown to users, at a time."""

SESSIONS: Final = 16
"""Maximum number of open transactions. The lease lists their sessions, so that the next process can end them."""

_UNTIL: Final = {"$dateAdd": {"startDate": "$$NOW", "unit": "millisecond", "amount": int(LEASE_SECONDS * 1000)}}

Write = InsertOne[Any] | ReplaceOne[Any] | UpdateOne | DeleteOne | DeleteMany

_log = get_logger("sync.store")


class LeaseLostError(Exception):
    """Another process has taken over."""


class LeaseHeldError(Exception):
    """Another process runs this replication."""


def shown(key: Value) -> str:
    """Format an ``_id`` for a log."""
    return repr(rawbson.decode_document(rawbson.wrap_value(*key, name=b"_id")).get("_id"))


@dataclass(frozen=True)
class DocumentWrites:
    """The writes for one document, all or nothing, or several inserts.

    Attributes:
        id: its ``_id``; of the first document if there are several.
        commutes: whether the order relative to writes of other documents does not matter. A router sends such writes to
            all shards at once. Otherwise it waits for one shard whenever the next write is for another.
    """

    namespace: str
    id: Value
    writes: Sequence[Write]
    commutes: bool = False


@dataclass(frozen=True)
class Refusal:
    """A document that the target has refused."""

    namespace: str
    id: Value
    code: int
    error: str


class Store:
    """The stored state of one replication.

    Writes raise `LeaseLostError` once another process has taken over.

    Attributes:
        written: the time of the target after the last transaction of this process.
    """

    def __init__(self, replication_id: str, source: End, target: End, *, source_writes: bool) -> None:
        self.id = replication_id
        self.term = 0
        self._source, self._target = source, target
        self._source_writes = source_writes
        self._owner = uuid.uuid4().hex
        self._started = time.time()
        self._start_last: Timestamp | None = None
        self._recorded: Checkpoint | None = None
        self._valid_until = 0.0
        self.written: Timestamp | None = None
        self._sessions: asyncio.Queue[AsyncClientSession] = asyncio.Queue()
        self._recording = asyncio.Lock()

    async def acquire(self) -> None:
        """Acquire the lease.

        Raises:
            LeaseHeldError: another process has it.
        """
        leases = self._target.own(LEASES)
        asked = time.monotonic()
        first = {"$setOnInsert": {"term": 0, "until": datetime.fromtimestamp(0, UTC)}}
        await leases.update_one({"_id": self.id}, first, upsert=True)
        free = {"$or": [{"$expr": {"$lt": ["$until", "$$NOW"]}}, {"owner": self._owner}]}
        sessions = [self._target.client.start_session() for _ in range(SESSIONS)]
        ids = [each.session_id["id"] for each in sessions]
        owned = {"owner": self._owner, "until": _UNTIL, "sessions": ids}
        taken = [{"$set": {"term": {"$add": ["$term", 1]}, **owned}}]
        found = await leases.find_one_and_update({"_id": self.id, **free}, taken)
        if found is None:
            for each in sessions:
                await each.end_session()
            raise LeaseHeldError(f"another process runs the replication {self.id}")
        if former := found.get("sessions"):
            # A transaction of a killed process would stay open, and block others, for a minute.
            await self._target.command("admin", {"killSessions": [{"id": each} for each in former]})
        self._sessions = asyncio.Queue()
        for each in sessions:
            self._sessions.put_nowait(each)
        self.term, self._valid_until = found["term"] + 1, asked + LEASE_SECONDS
        raised = {"$set": {"term": self.term}}
        for name in (SYNC, VERIFICATION):
            await self._target.own(name).update_one({"_id": self.id}, raised, upsert=True)
        await self._target.own(RANGES).update_many({"sync": self.id}, raised)

    async def keep_lease(self, progress: Callable[[], Mapping[str, Any]]) -> None:
        """Renew the lease for ever, and publish the progress with it."""
        while True:
            try:
                await self._renew({"progress": {"$literal": dict(progress())}})
            except PyMongoError as error:
                if not is_transient(error):
                    raise
                _log.warning("The lease could not be renewed", error=str(error))
            check_cancellation()
            await asyncio.sleep(RENEW_SECONDS)

    async def _renew(self, more: Mapping[str, Any]) -> None:
        """Renew the lease, even if it has expired, unless another process has it."""
        asked = time.monotonic()
        change = [{"$set": {"until": _UNTIL, **more}}]
        result = await self._target.own(LEASES).update_one({"_id": self.id, "term": self.term}, change)
        if not result.matched_count:
            raise LeaseLostError("another process has taken over")
        self._valid_until = asked + LEASE_SECONDS

    async def check_lease(self, *, is_doubtful: bool = False) -> None:
        """Renew the lease if it has expired, because this process was slow or the target was.

        The term decides whether this process may continue. A renewed lease keeps other processes from taking over in
        the middle of a write.

        Args:
            is_doubtful: whether to renew it in any case. The clock may have stood still, as on a suspended machine.
        """
        if is_doubtful or time.monotonic() > self._valid_until:
            await self._renew({})

    async def release(self) -> None:
        """Release the lease for another process; if the target is away, the lease expires instead."""
        try:
            while not self._sessions.empty():
                await self._sessions.get_nowait().end_session()
            over = [{"$set": {"until": "$$NOW"}}]
            await self._target.own(LEASES).update_one({"_id": self.id, "term": self.term}, over)
        except PyMongoError as error:
            _log.warning("The lease could not be given up", error=str(error))

    async def progress_of_owner(self) -> Mapping[str, Any]:
        """Return the progress last published by the process that runs the replication."""
        found = await self._target.own(LEASES).find_one({"_id": self.id})
        return {} if found is None else dict(found.get("progress", {}))

    async def position(self) -> dict[str, Any]:
        """Return the target's own document: token, time, and whether the copy is planned and complete."""
        return await self._target.own(SYNC).find_one({"_id": self.id}) or {}

    async def verification(self) -> dict[str, Any]:
        """Return the position and findings of the verification, as stored by `Verifier`."""
        return await self._target.own(VERIFICATION).find_one({"_id": self.id}) or {}

    async def agreement(self) -> Agreement:
        """Compare the checkpoints of both ends."""
        target = Checkpoint.from_document(await self.position())
        self._recorded = target
        if not self._source_writes:
            known = Agreement(target.last, True, target.history[0].copied, "the target alone") if target else None
            return known or agreement(None, None)
        return agreement(Checkpoint.from_document(await self._source.own(SYNC).find_one({"_id": self.id})), target)

    async def record(self, last: Timestamp, *, copied: bool, counters: Mapping[str, int], is_new: bool = False) -> bool:
        """Record a checkpoint on both sides, with a new session; return whether anything had changed.

        Args:
            counters: the work of this process.
            is_new: record it even if nothing was done.
        """
        # Of two at once, one could come last at the source and the other at the target.
        async with self._recording:
            return await self._record(last, copied=copied, counters=counters, is_new=is_new)

    async def _record(self, last: Timestamp, *, copied: bool, counters: Mapping[str, int], is_new: bool) -> bool:
        self._start_last = self._start_last or last
        session = Session(uuid.uuid4().hex, self._started, time.time(), self._start_last, last, copied, dict(counters))
        if not is_new and not is_change(self._recorded, session):
            return False
        new = recorded(self._recorded, session)
        if self._source_writes:
            stored = self._source.own(SYNC)
            try:
                await repeated(lambda: stored.update_one({"_id": self.id}, {"$set": new.document()}, upsert=True))
            except OperationFailure as error:
                if error.code != USER_WRITES_BLOCKED:
                    raise
                # A commit was interrupted. The last checkpoint of both sides and the target's position stay valid.
                return False
        await self.fenced(SYNC, {"_id": self.id}, new.document())
        self._recorded = new
        return True

    async def ranges(self, namespace: str | None = None) -> list[dict[str, Any]]:
        """Return the ranges of all collections, or of one, with their positions."""
        stored = self._target.own(RANGES)
        which = {"sync": self.id, "term": self.term, **({} if namespace is None else {"ns": namespace})}
        return await repeated(lambda: stored.find(which).sort("number", 1).to_list())

    async def replace_ranges(self, ranges: Sequence[Mapping[str, Any]]) -> None:
        """Plan the copy again, and discard the verification."""
        await self.fenced(VERIFICATION, {"_id": self.id}, {"round": None})
        stored = self._target.own(RANGES)
        # The ranges of a process that has taken over have a later term.
        await repeated(lambda: stored.delete_many({"sync": self.id, "term": {"$lte": self.term}}))
        await self.add_ranges(ranges)

    async def add_ranges(self, ranges: Sequence[Mapping[str, Any]]) -> None:
        """Plan further ranges."""
        stored = self._target.own(RANGES)
        documents = [{"_id": uuid.uuid4().hex, "sync": self.id, "term": self.term, **each} for each in ranges]
        # Unlike inserts, these can be repeated after some of them were written.
        writes = [ReplaceOne({"_id": each["_id"]}, each, upsert=True) for each in documents]
        if writes:
            await repeated(lambda: stored.bulk_write(writes))

    async def fenced(
        self,
        collection: str,
        which: Mapping[str, Any],
        changes: Mapping[str, Any],
        documents: Sequence[DocumentWrites] = (),
        *,
        bypasses: Callable[[str], bool] = lambda namespace: True,
        removes: Sequence[str] = (),
    ) -> Timestamp | None:
        """Write documents and a position in one transaction, as long as the lease is ours; return its time.

        Args:
            removes: names of fields to remove from the position.
            bypasses: whether a collection has the source's validator, which its documents have passed there.

        Raises:
            BulkWriteError: a document was refused; then nothing is written.
        """
        fence = self._target.own(collection)

        async def transact(session: AsyncClientSession) -> None:
            update: dict[str, Any] = {"$set": {"term": self.term, **changes}}
            if removes:
                update["$unset"] = dict.fromkeys(removes, "")
            result = await fence.update_one({**which, "term": self.term}, update, session=session)
            if not result.matched_count:
                raise LeaseLostError("another process has taken over")
            for namespace, some in _by_collection(documents).items():
                ordered = not all(each.commutes for each in some)
                for writes in [[write for each in some for write in each.writes]] if ordered else stages(some):
                    try:
                        await self._target.collection(namespace).bulk_write(
                            writes, ordered=ordered, session=session, bypass_document_validation=bypasses(namespace)
                        )
                    except InvalidBSON as error:
                        # The reply repeats the refused document, which may contain values that Python does not have.
                        raise BulkWriteError({"writeErrors": [{"code": 0, "errmsg": str(error)}]}) from error

        async def attempt() -> Timestamp | None:
            await self.check_lease()
            session = await self._sessions.get()
            try:
                await session.with_transaction(transact, ReadConcern("local"), MAJORITY)
                if self.written is None or (session.operation_time or self.written) > self.written:
                    self.written = session.operation_time
                return session.operation_time
            finally:
                self._sessions.put_nowait(session)

        return await repeated(attempt)

    async def write(
        self,
        collection: str,
        which: Mapping[str, Any],
        changes: Mapping[str, Any],
        documents: Sequence[DocumentWrites],
        *,
        bypasses: Callable[[str], bool] = lambda namespace: True,
    ) -> tuple[Timestamp | None, list[Refusal]]:
        """Write documents and a position like `fenced`; refused documents do not stop the others.

        Returns:
            The time of the last transaction, and the refusals.
        """
        refused: list[Refusal] = []

        async def part(some: Sequence[DocumentWrites]) -> None:
            try:
                await self.fenced(collection, which, {}, some, bypasses=bypasses)
            except BulkWriteError as error:
                if len(some) == 1:
                    first = (error.details or {})["writeErrors"][0]
                    refused.append(Refusal(some[0].namespace, some[0].id, first["code"], first["errmsg"]))
                    return
                middle = len(some) // 2
                await part(some[:middle])
                await part(some[middle:])

        try:
            return await self.fenced(collection, which, changes, documents, bypasses=bypasses), refused
        except BulkWriteError:
            await part(documents)
        return await self.fenced(collection, which, changes), refused

    async def note_failures(self, refused: Sequence[Refusal]) -> None:
        """Record refused documents."""
        stored = self._target.own(FAILURES)
        for each in refused:
            kind, value = each.id
            key = {"sync": self.id, "ns": each.namespace, "id": bytes((kind,)) + value}
            text = shown_error(each.error)
            update = {"$set": {"code": each.code, "error": text}, "$inc": {"attempts": 1}}
            await repeated(lambda key=key, update=update: stored.update_one({"_id": key}, update, upsert=True))  # type: ignore[misc]
            _log.warning(
                "The target refused a document",
                namespace=each.namespace,
                id=shown(each.id),
                code=each.code,
                error=text,
            )

    async def count_failures(self) -> int:
        """Return the number of documents that were refused and not written since."""
        stored = self._target.own(FAILURES)
        return await repeated(lambda: stored.count_documents(self._failures_after(None)))

    async def failures(self, after: Mapping[str, Any] | None = None) -> list[dict[str, Any]]:
        """Return up to `FAILURES_AT_ONCE` documents that were refused and not written since, in the order of ``_id``.

        Args:
            after: the last one returned before; None to begin.
        """
        stored = self._target.own(FAILURES)
        which = self._failures_after(after)
        return await repeated(lambda: stored.find(which).sort("_id", 1).limit(FAILURES_AT_ONCE).to_list())

    def _failures_after(self, after: Mapping[str, Any] | None) -> dict[str, Any]:
        # A filter of `_id.sync` could not use the index.
        low = {"sync": self.id} if after is None else after["_id"]
        return {"_id": {"$gt": low, "$lt": {"sync": self.id, "ns": MaxKey()}}}

    async def forget_failure(self, failure: Mapping[str, Any]) -> None:
        """Remove the record of a refused document that has been written since."""
        await repeated(lambda: self._target.own(FAILURES).delete_one({"_id": failure["_id"]}))


def stages(documents: Sequence[DocumentWrites]) -> list[list[Write]]:
    """Divide commuting writes into as few groups as possible.

    A driver keeps no order between deletions and other writes of a group, so they are in different groups for one
    document.
    """
    found: list[list[Write]] = []
    for each in documents:
        runs = groupby(each.writes, lambda write: isinstance(write, DeleteOne | DeleteMany))
        for number, (_, run) in enumerate(runs):
            if number == len(found):
                found.append([])
            found[number] += run
    return found


def _by_collection(documents: Sequence[DocumentWrites]) -> dict[str, list[DocumentWrites]]:
    found: dict[str, list[DocumentWrites]] = {}
    for each in documents:
        if each.writes:
            found.setdefault(each.namespace, []).append(each)
    return found
