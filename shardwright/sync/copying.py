"""Copying collections in ranges of ``_id``, or comparing them where the target already has documents."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any, Final

from bson.raw_bson import RawBSONDocument
from bson.timestamp import Timestamp
from pymongo.errors import BulkWriteError, OperationFailure

from shardwright.sync.batches import Limits
from shardwright.sync.changes import Value, id_of
from shardwright.sync.ends import NAMESPACE_NOT_FOUND, RAW, End, check_cancellation, repeated
from shardwright.sync.ranges import (
    SAMPLES_PER_RANGE,
    Bound,
    Hashes,
    Piece,
    bounds_from,
    count_for,
    differences,
    find_command,
    hashes,
    id_bound,
    ids_filter,
    last_bound,
    piece_limit,
    range_filter,
)
from shardwright.sync.store import RANGES, Store
from shardwright.sync.writing import Writer
from shardwright.wire.logger import get_logger

WORKERS: Final = 4

INSERTS_MAX: Final = 3
"""Attempts to insert a piece; each one skips the documents that have appeared at the target since."""

_log = get_logger("sync.copying")


@dataclass(frozen=True)
class PieceRead:
    """The documents of a piece.

    Attributes:
        last: the last ``_id`` of the piece; None if it reaches to the end.
        target: hashes of the target's documents; None if they are not compared.
    """

    documents: list[RawBSONDocument]
    last: Bound
    target: Hashes | None = None

    @property
    def size(self) -> int:
        """The number of bytes of all documents."""
        return sum(len(each.raw) for each in self.documents)


@dataclass(frozen=True)
class _Bounds:
    """The bounds of a collection's ranges, and estimates of its contents."""

    bounds: list[tuple[Bound, Bound]]
    documents: int = 0
    size: int = 0
    is_empty: bool = False


async def planned_ranges(source: End, namespace: str, uuid: bytes | None, *, compares: bool) -> list[dict[str, Any]]:
    """Plan the ranges of a collection, in their stored form.

    Args:
        uuid: identifies the collection. If it no longer has the name, an event follows. Then there is one range without
            bounds, which waits for the event.
    """
    found = None
    if await source.uuid(namespace) == uuid:
        found = await _bounds(source, namespace, is_limited=not compares)
    # Another collection of the same name has other bounds.
    if found is None or await source.uuid(namespace) != uuid:
        found, compares = _Bounds([(None, None)]), True
    return [
        {
            "ns": namespace,
            "uuid": uuid,
            "number": number,
            "low": low,
            "high": high,
            "position": low,
            "compares": compares,
            "done": found.is_empty and number == len(found.bounds) - 1,
            "documents": 0,
            "bytes": 0,
            "estimated_documents": found.documents // len(found.bounds),
            "estimated_bytes": found.size // len(found.bounds),
        }
        for number, (low, high) in enumerate(found.bounds)
    ]


async def _bounds(source: End, namespace: str, *, is_limited: bool) -> _Bounds:
    """Divide a collection into ranges.

    Args:
        is_limited: whether the last range ends with the present documents.
    """
    database, _, name = namespace.partition(".")
    size = documents = 0
    try:
        stats = await source.command(database, {"collStats": name})
        size, documents = int(stats.get("size", 0)), int(stats.get("count", 0))
    except OperationFailure as error:
        if error.code != NAMESPACE_NOT_FOUND:
            raise
    count = count_for(size)
    samples: list[bytes] = []
    if count > 1:
        pipeline: list[Mapping[str, Any]] = [
            {"$sample": {"size": count * SAMPLES_PER_RANGE}},
            {"$project": {"_id": 1}},
            {"$sort": {"_id": 1}},
        ]
        cursor = await source.collection(namespace).aggregate(pipeline, allowDiskUse=True)
        samples = [bytes(each.raw) async for each in cursor]
    bounds = bounds_from(samples, count)
    is_empty = False
    if is_limited:
        # The change stream has the later inserts. Without this bound, the copy would chase an application that inserts
        # larger and larger _id values, and never end.
        greatest = await source.collection(namespace).find({}, {"_id": 1}).sort("_id", -1).limit(1).to_list()
        is_empty = not greatest
        bounds[-1] = bounds[-1][0], last_bound(greatest)
    return _Bounds(bounds, documents, size, is_empty)


class Copier:
    """Copies the ranges of a plan in parallel.

    Attributes:
        ranges: in their stored form, with their positions.
        applied: the cluster time of the newest applied change of the source.
        progressed: notified when changes are applied, and when a piece ends.
        allowed: set unless the replication is paused; pieces begin only while it is set.
    """

    def __init__(
        self,
        source: End,
        target: End,
        store: Store,
        writer: Writer,
        ranges: list[dict[str, Any]],
        *,
        workers: int = WORKERS,
        limits: Limits = Limits(),  # noqa: B008 - it is frozen
    ) -> None:
        self.ranges = ranges
        self.applied: Timestamp | None = None
        self.progressed = asyncio.Condition()
        self.allowed = asyncio.Event()
        self.allowed.set()
        self._may_begin = asyncio.Event()
        self._may_begin.set()
        self._source, self._target, self._store, self._writer = source, target, store, writer
        self._workers, self._limits = workers, limits
        self._active: set[str] = set()
        # Numbers of leading ranges that are done, and that were begun, so that no search starts at the first range.
        self._done = self._begun = 0

    @property
    def is_done(self) -> bool:
        """Whether everything planned has been copied."""
        while self._done < len(self.ranges) and self.ranges[self._done]["done"]:
            self._done += 1
        return self._done == len(self.ranges)

    async def run(self) -> None:
        """Copy everything that is not copied yet."""
        self._begun = 0
        async with asyncio.TaskGroup() as workers:
            for _ in range(self._workers):
                workers.create_task(self._work())

    async def run_added(self) -> None:
        """Copy ranges that are added after the copy, until cancelled."""
        while True:
            async with self.progressed:
                await self.progressed.wait_for(lambda: not self.is_done)
            await self.run()
            check_cancellation()

    async def wait_done(self) -> None:
        """Wait until everything planned has been copied."""
        async with self.progressed:
            await self.progressed.wait_for(lambda: self.is_done)

    async def note_applied(self, time: Timestamp) -> None:
        """Record that all changes up to this time are applied."""
        async with self.progressed:
            self.applied = time
            self.progressed.notify_all()

    @asynccontextmanager
    async def stopped(self, namespace: str) -> AsyncIterator[None]:
        """Prevent reads and writes of a collection's pieces during the block."""
        self._may_begin.clear()
        try:
            async with self.progressed:
                await self.progressed.wait_for(lambda: not self._writer.pieces.count(namespace))
            async with self._writer.lock:
                yield
        finally:
            self._may_begin.set()

    def add(self, ranges: list[dict[str, Any]]) -> None:
        """Add ranges to the copy."""
        self.ranges += ranges

    def drop(self, namespace: str, *, spared: bytes | None = None) -> list[dict[str, Any]]:
        """Remove and return the ranges of a collection. The caller guarantees that none is being read.

        Args:
            spared: UUID of a collection whose ranges stay.
        """
        gone = [each for each in self.ranges if each["ns"] == namespace and (spared is None or each["uuid"] != spared)]
        if gone:
            dropped = {each["_id"] for each in gone}
            self.ranges = [each for each in self.ranges if each["_id"] not in dropped]
            self._done = self._begun = 0
        for each in gone:
            each["done"] = True
        return gone

    async def _work(self) -> None:
        while (chosen := self._next()) is not None:
            try:
                while not chosen["done"]:
                    await self.allowed.wait()
                    await self._may_begin.wait()
                    await self._piece(chosen)
            finally:
                self._active.discard(chosen["_id"])

    def _next(self) -> dict[str, Any] | None:
        while self._begun < len(self.ranges):
            each = self.ranges[self._begun]
            self._begun += 1
            if not each["done"] and each["_id"] not in self._active:
                self._active.add(each["_id"])
                return each
        return None

    async def _piece(self, chosen: dict[str, Any]) -> None:
        """Copy the next piece of a range."""
        piece = self._writer.pieces.open(chosen["ns"])
        try:
            read = await self._read_piece(chosen)
            uuid = await repeated(lambda: self._source.uuid(piece.namespace))
            if uuid != chosen["uuid"]:
                self._writer.pieces.close(piece)
                async with self.progressed:
                    self.progressed.notify_all()
                await self._wait_changed(chosen, piece.namespace, uuid)
                return
            if chosen["done"] or chosen["ns"] != piece.namespace:
                return
            await self._write(chosen, piece, read)
        finally:
            self._writer.pieces.close(piece)
            async with self.progressed:
                self.progressed.notify_all()

    async def _write(self, chosen: dict[str, Any], piece: Piece, read: PieceRead) -> None:
        counters, namespace = self._writer.counters, chosen["ns"]
        last = read.last
        counters["documents_read"] += len(read.documents)
        # An interrupted process may have inserted documents that were deleted since, and whose deletion is applied.
        inserted: Bound = chosen.get("inserted")
        progress = {
            "documents": chosen["documents"] + len(read.documents),
            "bytes": chosen["bytes"] + read.size,
            "done": last is None and inserted is None,
            "position": _end(chosen) if last is None else last,
            "inserted": None if last is None else inserted,
        }
        again = set[Value]()
        if read.target is not None:
            found = differences(hashes(bytes(each.raw) for each in read.documents), read.target)
            counters["documents_missing"] += len(found.missing)
            again |= {*found.all}
        elif read.documents:
            if self._writer.source_keys.get(namespace) is not None:
                # Another shard may have a document with the same _id, which the next piece does not read.
                again.add(id_of(bytes(read.documents[-1].raw)))
            fresh, skipped = read.documents, again | piece.touched
            if skipped:
                fresh = [each for each in fresh if id_of(bytes(each.raw)) not in skipped]
            again |= await self._insert(chosen, fresh, last)
        counters["documents_checked"] += len(read.documents)
        async with self._writer.lock:
            if chosen["done"] or chosen["ns"] != namespace:
                return
            again |= piece.touched
            if again:
                await self._writer.reconcile(namespace, again)
            await self._store.fenced(RANGES, {"_id": chosen["_id"]}, progress)
            chosen |= progress

    async def _insert(self, chosen: dict[str, Any], documents: list[RawBSONDocument], last: Bound) -> set[Value]:
        """Insert documents, and return the ``_id`` values of documents that the target already had.

        The target has some if changes were applied ahead of the copy.

        Args:
            last: the end of their piece. It is stored with them. If the copy is interrupted before the position
                follows, the next process compares the documents up to there.
        """
        counters, namespace = self._writer.counters, chosen["ns"]
        fresh, there = documents, set[Value]()
        for _ in range(INSERTS_MAX):
            try:
                await self._store.fenced(
                    RANGES,
                    {"_id": chosen["_id"]},
                    {"inserted": last},
                    self._writer.inserts(namespace, fresh),
                    bypasses=self._writer.bypasses,
                )
            except BulkWriteError:
                before = len(there)
                there |= await repeated(lambda: self._present(namespace, documents))
                if len(there) == before:
                    break  # the target refuses one of them for another reason
                fresh = [each for each in documents if id_of(bytes(each.raw)) not in there]
                if not fresh:
                    return there
            else:
                counters["documents_written"] += len(fresh)
                counters["documents_missing"] += len(fresh)
                return there
        return {id_of(bytes(each.raw)) for each in documents}

    async def _present(self, namespace: str, documents: list[RawBSONDocument]) -> set[Value]:
        """Return the ``_id`` values of documents that the target has."""
        wanted = ids_filter([id_of(bytes(each.raw)) for each in documents])
        found = await self._target.collection(namespace).find(wanted, {"_id": 1}).to_list()
        return {id_of(bytes(each.raw)) for each in found}

    async def _read_piece(self, chosen: dict[str, Any]) -> PieceRead:
        """Read the next piece of a range at the source, and at the target too if they are compared."""
        read = await repeated(lambda: self._read(chosen, _end(chosen)))
        if not chosen["compares"] and chosen.get("inserted") is None:
            return read
        last = _end(chosen) if read.last is None else read.last
        there = await repeated(lambda: self._read_target(chosen, last, self._limits.documents + 1))
        if len(there) > self._limits.documents:
            # The target has more documents up to there than fit into a piece. So they end the piece: otherwise all of
            # them would be in memory, and be deleted while no changes are applied.
            end = id_bound(there[-1][0])
            read = await repeated(lambda: self._read(chosen, end))
            read = replace(read, last=read.last or end)
            there = await repeated(lambda: self._read_target(chosen, read.last))
        found: dict[Value, frozenset[bytes]] = {}
        for key, each in there:
            found[key] = found.get(key, frozenset()) | each
        return replace(read, target=found)

    async def _read_target(
        self, chosen: dict[str, Any], last: Bound, limit: int = 0
    ) -> list[tuple[Value, frozenset[bytes]]]:
        """Return the hashes of the target's documents up to ``last``, in the order of ``_id``.

        Args:
            limit: maximum number of documents; 0 for all.
        """
        which = range_filter(chosen["position"], last)
        cursor = self._target.collection(chosen["ns"]).find(which, hint={"_id": 1}, sort={"_id": 1}, limit=limit)
        return [pair async for each in cursor for pair in hashes([bytes(each.raw)]).items()]

    async def _read(self, chosen: dict[str, Any], high: Bound) -> PieceRead:
        limit = piece_limit(
            chosen["documents"], chosen["bytes"], documents_max=self._limits.documents, bytes_max=self._limits.bytes
        )
        database, _, name = chosen["ns"].partition(".")
        concern: dict[str, Any] = {"level": "majority"}
        command = find_command(name, chosen["position"], high, limit, concern)
        async with self._source.client.start_session(causal_consistency=True) as session:
            if self.applied is not None:
                session.advance_operation_time(self.applied)
            reply: Any = await self._source.client.get_database(database, codec_options=RAW).command(
                command, codec_options=RAW, session=session
            )
            self._writer.note_read(session.operation_time)
        documents = list(reply["cursor"]["firstBatch"])
        return PieceRead(documents, last_bound(documents))

    async def _wait_changed(self, chosen: dict[str, Any], namespace: str, uuid: bytes | None) -> None:
        """Wait until the changes that gave the collection another UUID are applied.

        If it was dropped or renamed, the range is then dropped or renamed as well. Otherwise it was resharded, and the
        new collection has the same documents.

        Args:
            uuid: of the collection that had the name before this call, or None.
        """
        seen = await self._source.advance()
        _log.info("A collection has changed while it is copied", namespace=namespace)

        def has_moved() -> bool:
            return bool(chosen["done"] or chosen["ns"] != namespace)

        async with self.progressed:
            await self.progressed.wait_for(lambda: has_moved() or (self.applied is not None and self.applied >= seen))
        if uuid is None:
            return  # the event may be later than ``seen``
        async with self._writer.lock:
            # A UUID read only now could already be the one of a later collection.
            if not has_moved():
                chosen["uuid"] = uuid
                await self._store.fenced(RANGES, {"_id": chosen["_id"]}, {"uuid": uuid})


def _end(chosen: Mapping[str, Any]) -> Bound:
    """Return the end of the documents to read next: of an interrupted insert, or of the range."""
    inserted: Bound = chosen.get("inserted")
    return chosen["high"] if inserted is None else inserted
