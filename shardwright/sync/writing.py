"""Writes at the target, made from changes and documents of the source."""

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import bson
from bson.errors import InvalidBSON
from bson.raw_bson import RawBSONDocument
from bson.timestamp import Timestamp
from pymongo import DeleteMany, DeleteOne, InsertOne, ReplaceOne, UpdateOne
from pymongo.read_concern import ReadConcern

from shardwright.sync.batches import Folded, Patch, Put, Remove, Reread, parents, updates
from shardwright.sync.changes import Delta, Value, id_of
from shardwright.sync.checkpoint import NO_TIME
from shardwright.sync.ends import End, repeated
from shardwright.sync.plan import Collection, id_filter, key_filter, value_at
from shardwright.sync.ranges import OpenPieces, id_bound, ids_filter
from shardwright.sync.rounds import Touched
from shardwright.sync.store import SYNC, DocumentWrites, Refusal, Store, Write
from shardwright.wire import rawbson

EMPTY_TIMESTAMP: Final = bytes(8)

AT_ONCE: Final = 100
"""Number of documents read again at a time; each may have 16 MB."""


class Writer:
    """All writes of documents at the target.

    Attributes:
        lock: held while changes are applied, and while the copy repeats changed documents.
        merged: the collections that the target had before; they keep their indexes and options.
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

    def dropped(self, namespace: str) -> None:
        """Forget a collection."""
        self.collections.pop(namespace, None)
        self.source_keys.pop(namespace, None)
        self.merged.discard(namespace)

    def renamed(self, old: str, new: str) -> None:
        """Note a rename; the collection replaces the one that had the new name."""
        self.collections[new] = self.collections.pop(old)
        self.source_keys[new] = self.source_keys.pop(old)
        self.merged.discard(new)
        if old in self.merged:
            self.merged.remove(old)
            self.merged.add(new)

    def bypasses(self, namespace: str) -> bool:
        """Whether the collection has the source's validator, which its documents have passed or preceded."""
        return namespace not in self.merged

    def inserts(self, namespace: str, documents: Sequence[RawBSONDocument]) -> list[DocumentWrites]:
        """Return inserts for new documents, together: one by one they cost 30 % more processor time."""
        writes: list[Write] = []
        for each in documents:
            writes += new(each, self._key(namespace))
        return [DocumentWrites(namespace, id_of(bytes(documents[0].raw)), writes, True)] if documents else []

    async def apply(self, folded: Sequence[Folded], position: Mapping[str, Any]) -> Timestamp | None:
        """Apply a batch and advance the position with it; the caller holds the lock.

        Returns:
            The time of the last transaction at the target.
        """
        changed: dict[str, list[Value]] = {}
        for each in folded:
            changed.setdefault(each.namespace, []).append(each.id)
        for namespace, every in changed.items():
            self.pieces.touch(namespace, every)
            self.touched.note(namespace, every)
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
            # With a collation, the source may have a document with an equal ``_id`` instead. The deletion would match
            # it at the target too. So deletions come first, and the document is written afterwards.
            some = sorted({*some, *documents}, key=lambda key: key in documents)
            writes = [self._as_the_source(namespace, key, documents.get(key, ())) for key in some]
            _, failed = await self._write({}, writes)
            refused += failed
            self.counters["documents_written"] += len(writes) - len(failed)
        self.counters["write_failures"] += len(refused)
        await self._store.note_failures(refused)
        return refused

    async def retry_failures(self) -> int:
        """Retry refused documents, and return the number of those still refused; the caller holds the lock."""
        left, last = 0, None
        while some := await self._store.failures(last):
            for each in some:
                stored = bytes(each["_id"]["id"])
                if await self.reconcile(each["_id"]["ns"], [(stored[0], stored[1:])]):
                    left += 1
                else:
                    await self._store.forget_failure(each)
            last = some[-1]
        return left

    async def _write(
        self, position: Mapping[str, Any], documents: Sequence[DocumentWrites]
    ) -> tuple[Timestamp | None, list[Refusal]]:
        return await self._store.write(SYNC, {"_id": self._store.id}, position, documents, bypasses=self.bypasses)

    async def _read(self, namespace: str, ids: Sequence[Value]) -> dict[Value, list[RawBSONDocument]]:
        collection = self._source.collection(namespace).with_options(read_concern=ReadConcern("majority"))
        found: dict[Value, list[RawBSONDocument]] = {}
        async with self._source.client.start_session(causal_consistency=True) as session:
            for document in await collection.find(ids_filter(ids), session=session).to_list():
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
        own = id_bound(key)
        writes: list[Write] = []
        if shard_key is not None or not documents:
            keys = [key_filter(bytes(each.raw), shard_key) for each in documents]
            others = [rawbson.raw_document(rawbson.from_elements(each)) for each in keys if each]
            if len(others) == len(documents):
                nor = rawbson.encode_elements({"$nor": others}) if others else b""
                writes.append(DeleteMany(rawbson.raw_document(rawbson.append(own, nor))))
        for each in documents:
            writes += puts(each, shard_key)
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
        own = folded.key if same else id_bound(folded.id)
        writes: list[Write] = []
        for operation in folded.operations:
            match operation:
                case Put(document):
                    whole = RawBSONDocument(document)
                    if same:
                        writes += puts(whole, self._key(folded.namespace))
                    else:
                        # The source is not read for this. Reads would be later than all applied changes, so the target
                        # of a constantly written source would never equal a state of it.
                        writes += self._as_the_source(folded.namespace, folded.id, [whole]).writes
                case Remove():
                    # A transaction may move a document to another shard of the source. Its insert there may come before
                    # its deletion here, which must not match the moved document.
                    selected = rawbson.raw_document(folded.key)
                    writes.append(DeleteOne(selected) if same else DeleteMany(selected))
                case Patch(delta):
                    guards = rawbson.encode_elements({path: {"$exists": True} for path in parents(delta)})
                    guarded = rawbson.raw_document(rawbson.append(own, guards))
                    writes += [UpdateOne(guarded, update) for update in updates(delta)]
        return writes

    async def _unlike(self, folded: Sequence[Folded]) -> dict[str, set[Value]]:
        """Find documents that lack the parent of a changed field, by collection."""
        asked: dict[str, list[Mapping[str, Any]]] = {}
        for each in folded:
            deltas: list[Delta] = [operation.delta for operation in each.operations if isinstance(operation, Patch)]
            missing = [{path: {"$exists": False}} for delta in deltas for path in parents(delta)]
            if missing:
                selected = rawbson.append(id_bound(each.id), rawbson.encode_elements({"$or": missing}))
                asked.setdefault(each.namespace, []).append(rawbson.raw_document(selected))
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

    With a unique index, one document may have to free a value before another can use it. With a collation, that
    concerns the text in ``_id`` as well.
    """
    if known is None or known.is_unique or "collation" in known.options:
        return False
    return not any(each.get("unique") for each in known.indexes)


class Replacement(RawBSONDocument):
    """A document that pymongo does not decode, although it reads the length of a replacement."""

    def __len__(self) -> int:
        return 1


def new(document: RawBSONDocument, key: Mapping[str, Any] | None) -> list[Write]:
    """Return the writes that insert a document; see `puts`."""
    raw = bytes(document.raw)
    # A server replaces empty timestamps of an inserted document by its time.
    empty = [
        name
        for name, (kind, _, start, end) in (rawbson.spans(raw) if b"\x11" in raw and bytes(9) in raw else ())
        if kind == rawbson.TIMESTAMP and not any(raw[start:end])
    ]
    writes: list[Write] = [InsertOne(document)]
    if plain := [each for each in empty if not _is_no_path(each)]:
        fields = b"".join(rawbson.element(each, rawbson.TIMESTAMP, EMPTY_TIMESTAMP) for each in plain)
        writes.append(UpdateOne(_only(raw, key), {"$set": rawbson.raw_document(rawbson.from_elements(fields))}))
    if others := [each for each in empty if _is_no_path(each)]:
        writes.append(UpdateOne(_only(raw, key), [_emptied(each) for each in others]))
    return writes


def puts(document: RawBSONDocument, key: Mapping[str, Any] | None) -> list[Write]:
    """Return the writes that insert a document, or replace the one with its ``_id`` and shard key.

    Args:
        key: the shard key of the target.
    """
    raw, inserts = bytes(document.raw), new(document, key)
    has_operator = b"$" in raw and any(name.startswith(b"$") for name, _ in rawbson.spans(raw))
    if has_operator or not _is_decodable(*value_at(raw, "_id")):
        # Such a document can be inserted, but not written by a replacement. And pymongo does not accept the reply to an
        # upsert that contains such an ``_id``.
        return [DeleteMany(_only(raw, key)), *inserts]
    return [ReplaceOne(_only(raw, key), Replacement(raw), upsert=True), *inserts[1:]]


def _is_no_path(name: bytes) -> bool:
    """Whether ``$set`` cannot name a field of the document."""
    return not name or name.startswith(b"$") or b"." in name


def _emptied(name: bytes) -> Mapping[str, Any]:
    """Return the update stage that sets a field, whatever its name, to an empty timestamp."""
    field = rawbson.raw_document(rawbson.wrap_value(rawbson.STRING, rawbson.string_value(name), name=b"$literal"))
    return {"$replaceWith": {"$setField": {"field": field, "input": "$$ROOT", "value": {"$literal": Timestamp(0, 0)}}}}


def _is_decodable(kind: int, value: bytes) -> bool:
    if kind in (rawbson.OBJECT_ID, rawbson.STRING, rawbson.INT32, rawbson.INT64, rawbson.DOUBLE):
        return True
    try:
        bson.decode(rawbson.wrap_value(kind, value))
    except InvalidBSON:
        return False
    return True


def _only(document: bytes, key: Mapping[str, Any] | None) -> RawBSONDocument:
    """Return the query for exactly one document."""
    return rawbson.raw_document(rawbson.from_elements(id_filter(document) + key_filter(document, key)))


def _overlap(path: str, other: str) -> bool:
    return path == other or path.startswith(other + ".") or other.startswith(path + ".")
