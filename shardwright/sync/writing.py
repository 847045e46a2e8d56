"""Writes at the target, made from changes and documents of the source."""

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from bson.raw_bson import RawBSONDocument
from bson.timestamp import Timestamp
from pymongo import DeleteMany, DeleteOne, InsertOne, ReplaceOne, UpdateOne
from pymongo.read_concern import ReadConcern

from shardwright.sync.changes import Delta, Value, id_of
from shardwright.sync.checkpoint import NO_TIME
from shardwright.sync.ends import End, repeated
from shardwright.sync.folding import Folded, Patch, Put, Remove, Reread, parents, updates
from shardwright.sync.pieces import OpenPieces
from shardwright.sync.plan import Collection, key_filter
from shardwright.sync.ranges import id_bound
from shardwright.sync.rounds import Touched
from shardwright.sync.store import SYNC, DocumentWrites, Refusal, Store, Write
from shardwright.wire import rawbson

AT_ONCE: Final = 100
"""Number of documents read again at a time; each may have 16 MB."""


class Writer:
    """All writes of documents at the target.

    Attributes:
        lock: held while changes are applied, and while the copy repeats changed documents.
        read_until: the latest time of a read of the source. Before changes are applied up to it, some documents of the
            target may be newer than others.
        touched_until: the time of the source that the target has reached when all of these are written.
    """

    def __init__(self, source: End, target: End, store: Store) -> None:
        self.pieces = OpenPieces()
        self.lock = asyncio.Lock()
        self.read_until = NO_TIME
        self.collections: dict[str, Collection] = {}
        self.source_keys: dict[str, Mapping[str, Any] | None] = {}
        self.merged: set[str] = set()
        self.touched = Touched()
        self.touched_until = NO_TIME
        self.counters = dict.fromkeys(
            ("documents_checked", "documents_missing", "documents_read", "documents_written", "write_failures"), 0
        )
        self._source, self._target, self._store = source, target, store

    def note_read(self, time: Timestamp | None) -> None:
        """Record the time of a read of the source."""
        if time is not None and time > self.read_until:
            self.read_until = time

    def bypasses(self, namespace: str) -> bool:
        """Whether the collection has the source's validator, which its documents have passed or preceded."""
        return namespace not in self.merged

    def inserts(self, namespace: str, documents: Sequence[RawBSONDocument]) -> list[DocumentWrites]:
        """Return inserts for new documents, together: one by one they cost 30 % more processor time."""
        writes = [InsertOne(each) for each in documents]
        return [DocumentWrites(namespace, id_of(bytes(documents[0].raw)), writes, True)] if documents else []

    async def apply(self, folded: Sequence[Folded], position: Mapping[str, Any]) -> Timestamp | None:
        """Apply a batch and advance the position with it; the caller holds the lock.

        Returns:
            The time of the last transaction at the target.
        """
        for namespace in {each.namespace for each in folded}:
            changed = [each.id for each in folded if each.namespace == namespace]
            self.pieces.touch(namespace, changed)
            self.touched.note(namespace, changed)
        self.touched_until = max(self.touched_until, position["applied"])
        again: dict[str, set[Value]] = {}
        documents: list[DocumentWrites] = []
        parts = Counter((each.namespace, each.id) for each in folded)
        for each in folded:
            # A changed shard key is a deletion with the old key and an insert with the new one.
            is_alone = parts[each.namespace, each.id] == 1
            is_reread = any(isinstance(operation, Reread) for operation in each.operations)
            if is_reread or self._moves(each, is_alone=is_alone):
                again.setdefault(each.namespace, set()).add(each.id)
            else:
                writes = self._writes(each)
                commutes = is_alone and may_commute(self.collections.get(each.namespace))
                documents.append(DocumentWrites(each.namespace, each.id, writes, commutes))
        if not again:
            time, refused = await self._write(position, documents)
        else:
            # The position follows when all documents of the batch are written.
            time, refused = await self._write({}, documents)
        for failed in refused:
            again.setdefault(failed.namespace, set()).add(failed.id)
        for namespace, ids in (await self._unlike(folded)).items():
            again.setdefault(namespace, set()).update(ids)
        self.counters["documents_written"] += len(documents) - len(refused)
        for namespace, keys in again.items():
            await self.reconcile(namespace, keys)
        if again:
            time = await self._store.fenced(SYNC, {"_id": self._store.id}, position)
        return time

    async def reconcile(self, namespace: str, ids: Iterable[Value]) -> list[Refusal]:
        """Give the target the present documents of the source; the caller holds the lock.

        Returns:
            The refusals, which are recorded as failures.
        """
        every = list(ids)
        self.touched.note(namespace, every)
        refused: list[Refusal] = []
        for start in range(0, len(every), AT_ONCE):
            some = every[start : start + AT_ONCE]
            documents = await repeated(lambda some=some: self._read(namespace, some))  # type: ignore[misc]
            self.touched_until = max(self.touched_until, self.read_until)
            writes = [self._as_the_source(namespace, key, documents.get(key, ())) for key in some]
            _, failed = await self._write({}, writes)
            refused += failed
            self.counters["documents_written"] += len(writes) - len(failed)
        self.counters["write_failures"] += len(refused)
        await self._store.note_failures(refused)
        return refused

    async def retry_failures(self) -> int:
        """Retry refused documents, and return the number of those still refused; the caller holds the lock."""
        left = 0
        for each in await self._store.failures():
            stored = bytes(each["_id"]["id"])
            if await self.reconcile(each["_id"]["ns"], [(stored[0], stored[1:])]):
                left += 1
            else:
                await self._store.forget_failure(each)
        return left

    async def _write(
        self, position: Mapping[str, Any], documents: Sequence[DocumentWrites]
    ) -> tuple[Timestamp | None, list[Refusal]]:
        return await self._store.write(SYNC, {"_id": self._store.id}, position, documents, bypasses=self.bypasses)

    async def _read(self, namespace: str, ids: Sequence[Value]) -> dict[Value, list[RawBSONDocument]]:
        values = [rawbson.raw_document(id_bound(key))["_id"] for key in ids]
        collection = self._source.collection(namespace).with_options(read_concern=ReadConcern("majority"))
        found: dict[Value, list[RawBSONDocument]] = {}
        async with self._source.client.start_session(causal_consistency=True) as session:
            for document in await collection.find({"_id": {"$in": values}}, session=session).to_list():
                found.setdefault(id_of(bytes(document.raw)), []).append(document)
                self.counters["documents_read"] += 1
            self.note_read(session.operation_time)
        return found

    def _key(self, namespace: str) -> Mapping[str, Any] | None:
        known = self.collections.get(namespace)
        return None if known is None else known.key

    def _has_same_key(self, namespace: str) -> bool:
        """Whether the keys of events select documents at the target."""
        key = self._key(namespace)
        return key is not None and list(key) == list(self.source_keys.get(namespace) or ())

    def _as_the_source(self, namespace: str, key: Value, documents: Sequence[RawBSONDocument]) -> DocumentWrites:
        shard_key = self._key(namespace)
        own = {"_id": rawbson.raw_document(id_bound(key))["_id"]}
        filters = [key_filter(each, shard_key) for each in documents]
        writes: list[Write] = []
        if shard_key is not None or not documents:
            others = [{name: value for name, value in each.items() if name != "_id"} for each in filters]
            others = [each for each in others if each]
            if len(others) == len(filters):
                writes.append(DeleteMany({**own, "$nor": others} if others else own))
        writes += [ReplaceOne(found, each, upsert=True) for found, each in zip(filters, documents, strict=True)]
        return DocumentWrites(namespace, key, writes, may_commute(self.collections.get(namespace)))

    def _moves(self, folded: Folded, *, is_alone: bool) -> bool:
        """Whether the document may get another shard key at the target that its changes do not fully describe.

        Args:
            is_alone: whether no other changes of the batch have the same ``_id``.
        """
        key = self._key(folded.namespace)
        if key is None or set(key) <= {"_id"}:
            return False
        for operation in folded.operations:
            if isinstance(operation, Patch) and any(
                _overlap(path, each) for path in operation.delta.paths for each in key
            ):
                return True
            if isinstance(operation, Put) and not self._has_same_key(folded.namespace) and not is_alone:
                return True
        return False

    def _writes(self, folded: Folded) -> list[Write]:
        same = self._has_same_key(folded.namespace)
        selected: Mapping[str, Any] = rawbson.raw_document(folded.key if same else id_bound(folded.id))
        writes: list[Write] = []
        for operation in folded.operations:
            match operation:
                case Put(document):
                    new = RawBSONDocument(document)
                    if same:
                        writes.append(ReplaceOne(key_filter(new, self._key(folded.namespace)), new, upsert=True))
                    else:
                        # The source is not read for this. Reads would be later than all applied changes, so the target
                        # of a constantly written source would never equal a state of it.
                        writes += self._as_the_source(folded.namespace, folded.id, [new]).writes
                case Remove():
                    writes.append(DeleteOne(selected) if same else DeleteMany(selected))
                case Patch(delta):
                    guarded = {**selected, **{path: {"$exists": True} for path in parents(delta)}}
                    writes += [UpdateOne(guarded, update) for update in updates(delta)]
        return writes

    async def _unlike(self, folded: Sequence[Folded]) -> dict[str, set[Value]]:
        """Find documents that lack the parent of a changed field, by collection."""
        asked: dict[str, list[Mapping[str, Any]]] = {}
        for each in folded:
            deltas: list[Delta] = [operation.delta for operation in each.operations if isinstance(operation, Patch)]
            missing = [{path: {"$exists": False}} for delta in deltas for path in parents(delta)]
            if missing:
                selected = rawbson.raw_document(id_bound(each.id))
                asked.setdefault(each.namespace, []).append({**selected, "$or": missing})
        found: dict[str, set[Value]] = {}
        for namespace, conditions in asked.items():
            for start in range(0, len(conditions), AT_ONCE):
                query = {"$or": conditions[start : start + AT_ONCE]}
                target = self._target.collection(namespace)
                unlike = await repeated(lambda query=query, target=target: target.find(query, {"_id": 1}).to_list())  # type: ignore[misc]
                if unlike:
                    found.setdefault(namespace, set()).update(id_of(bytes(each.raw)) for each in unlike)
        return found


def may_commute(known: Collection | None) -> bool:
    """Whether documents of a collection may be written in any order.

    A unique index may need one document to free a value before another uses it.
    """
    return known is not None and not known.is_unique and not any(each.get("unique") for each in known.indexes)


def _overlap(path: str, other: str) -> bool:
    return path == other or path.startswith(other + ".") or other.startswith(path + ".")
