"""The documents that a resharding operation writes on a shard: its state, the temporary collection, and the stashes.

The next primary resumes from the persisted state, which also has the state times. A recipient persists its progress per
donor along with the documents.

A batch is written by ``applyOps`` in the mode in which mongod executes its operations one after the other. The atomic
mode would block everything else, and wait for every open transaction. The progress comes last. If a crash interrupts a
batch, it is fetched again and repeated, which is safe because it contains document states instead of changes.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final
from uuid import UUID

import trio
from bson.binary import Binary
from bson.int64 import Int64
from bson.timestamp import Timestamp

from shardwright.daemon.sidecar.mongod import LocalMongod
from shardwright.shardd.context.shard_context import ShardContext
from shardwright.shardd.local_mongod import local_collections
from shardwright.shardd.local_mongod.local_collections import ConfigCollection
from shardwright.shardd.local_mongod.reserved_sessions import has_empty_timestamp
from shardwright.shardd.local_mongod.shard_key_index import all_documents
from shardwright.sharding.namespace import Namespace
from shardwright.sharding.resharding_participation import (
    DonorState,
    KnownDocuments,
    Ownership,
    Participation,
    RecipientState,
    Write,
    identity_key,
    identity_of,
    stash_namespace,
)
from shardwright.wire import rawbson
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.rawbson import encode_document, raw_document

DONOR: Final = "localReshardingOperations.donor"
RECIPIENT: Final = "localReshardingOperations.recipient"
PROGRESS: Final = "localReshardingOperations.recipient.progress_applier"


@dataclass(frozen=True, slots=True)
class LocalOperation:
    """A document with the operation, and this shard's state as donor or recipient.

    Attributes:
        is_holding: whether reads and writes are blocked until the coordinator has decided.
        hidden_indexes: the names of indexes to hide once a recipient's collection has been renamed into place.
    """

    participation: Participation
    state: DonorState | RecipientState
    is_holding: bool = False
    error: CommandError | None = None
    hidden_indexes: tuple[str, ...] = ()

    @property
    def blocks_operations(self) -> bool:
        """Whether operations must wait for the decision."""
        return self.is_holding or self.state is DonorState.BLOCKING_WRITES

    def to_document(self) -> dict[str, Any]:
        """Return the document; the state is in ``mutableState``, as in MongoDB."""
        mutable: dict[str, Any] = {"state": str(self.state)}
        if self.is_holding:
            mutable["isHolding"] = True
        if self.error is not None:
            error = self.error
            mutable["abortReason"] = {"code": error.code, "codeName": error.code_name, "errmsg": error.message}
        if self.hidden_indexes:
            mutable["hiddenIndexes"] = list(self.hidden_indexes)
        return {**self.participation.to_document(), "mutableState": mutable}


class LocalOperations:
    """The documents of all donors, or of all recipients, on this shard.

    All methods raise CommandError if mongod refuses, and BackendError if it does not answer.

    Args:
        name: `DONOR` or `RECIPIENT`.
    """

    def __init__(self, mongod: LocalMongod, name: str) -> None:
        self._documents = ConfigCollection(mongod, name)
        self._states = DonorState if name == DONOR else RecipientState

    async def all(self) -> list[LocalOperation]:
        """Return the operations that the former primary left."""
        return [self._parse(each) for each in await self._documents.all()]

    async def save(self, operation: LocalOperation) -> None:
        """Insert or replace a document."""
        await self._documents.save(operation.to_document())

    async def remove(self, operation_id: UUID) -> None:
        """Remove a document, if it exists."""
        await self._documents.remove(Binary.from_uuid(operation_id))

    def _parse(self, document: dict[str, Any]) -> LocalOperation:
        mutable = document["mutableState"]
        reason = mutable.get("abortReason")
        error = None if reason is None else CommandError(int(reason["code"]), str(reason["errmsg"]))
        state = self._states(mutable["state"])
        participation = Participation.from_document(document)
        hidden = tuple(mutable.get("hiddenIndexes", ()))
        return LocalOperation(participation, state, bool(mutable.get("isHolding")), error, hidden)


class LocalPart:
    """The donor or recipient of one operation, with its persisted state."""

    def __init__(self, documents: LocalOperations, operation: LocalOperation) -> None:
        self._documents = documents
        self._changing = trio.Lock()
        self._is_removed = False
        self.operation = operation

    @property
    def participation(self) -> Participation:
        """The operation."""
        return self.operation.participation

    async def save(self, **changes: Any) -> None:  # noqa: ANN401 - fields of all kinds
        """Change fields of the document.

        Raises:
            CommandError: NoSuchReshardCollection, the operation is over and its document removed; mongod refuses.
            BackendError: mongod does not answer.
        """
        async with self._changing:
            if self._is_removed:
                raise no_operation(self.participation.id)
            changed = replace(self.operation, **changes)
            await self._documents.save(changed)
            self.operation = changed

    async def remove(self) -> None:
        """Remove the document for good; errors as for `LocalOperations`."""
        self._is_removed = True
        async with self._changing:
            await self._documents.remove(self.participation.id)


def no_operation(operation_id: UUID) -> CommandError:
    """Return the error for an operation in which this shard does not take part, or no longer does."""
    return CommandError(ErrorCode.NoSuchReshardCollection, f"No resharding operation {operation_id} is in progress")


class StateTimes:
    """The times at which states were entered.

    Attributes:
        began: the time of entering the first state, by trio's clock.
        present: the time of entering the present state.
    """

    def __init__(self, state: str) -> None:
        self.began = self.present = trio.current_time()
        self._state = state
        self._seconds: dict[str, float] = {}

    @property
    def elapsed(self) -> float:
        """Seconds in all states together."""
        return trio.current_time() - self.began

    def enter(self, state: str) -> None:
        """Enter a state."""
        now = trio.current_time()
        self._seconds[self._state] = self._seconds.get(self._state, 0.0) + now - self.present
        self._state, self.present = state, now

    def seconds_in(self, state: str) -> Int64:
        """Return the whole seconds spent in a state so far."""
        seconds = self._seconds.get(state, 0.0)
        if state == self._state:
            seconds += trio.current_time() - self.present
        return Int64(seconds)


@dataclass(frozen=True, slots=True)
class PullProgress:
    """Progress of one recipient against one donor.

    Attributes:
        position: all changes up to this time have been written; None before the clone has begun.
        from_key: the present shard key, a raw document, of the last cloned document; None at the beginning.
        is_cloned: whether the clone is complete.
    """

    donor: str
    position: Timestamp | None = None
    from_key: bytes | None = None
    is_cloned: bool = False
    documents: int = 0
    bytes: int = 0
    changes: int = 0

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> "PullProgress":
        """Read the persisted form."""
        key = document.get("fromKey")
        return cls(
            donor=document["_id"]["shardId"],
            position=document.get("position"),
            from_key=None if key is None else encode_document(key),
            is_cloned=bool(document["isCloned"]),
            documents=int(document["documentsCopied"]),
            bytes=int(document["bytesCopied"]),
            changes=int(document["oplogEntriesApplied"]),
        )

    def to_document(self, operation_id: UUID) -> dict[str, Any]:
        """Return the persisted form."""
        document: dict[str, Any] = {
            "_id": {"reshardingUUID": Binary.from_uuid(operation_id), "shardId": self.donor},
            "isCloned": self.is_cloned,
            "documentsCopied": Int64(self.documents),
            "bytesCopied": Int64(self.bytes),
            "oplogEntriesApplied": Int64(self.changes),
        }
        if self.position is not None:
            document["position"] = self.position
        if self.from_key is not None:
            document["fromKey"] = raw_document(self.from_key)
        return document


_WRITES_MAX: Final = 500
_BYTES_MAX: Final = 4 * 1024 * 1024
"""Limits of one command."""

STASH_NOT_EMPTY: Final = 5356800
"""MongoDB's error code for two documents with the same ``_id`` that would be on one shard."""

_LOOKED_UP: Final = 1_000
_VALUE_AT: Final = 5
"""Offset of the value in an ``_id`` element: it follows the type, the name and a zero byte."""


class RecipientWriter:
    """The writer of all donors' documents, one batch at a time, because each depends on the existing documents.

    Methods that access mongod raise CommandError if it refuses, and BackendError if it does not answer.

    Args:
        ownership: the owners of documents before and after resharding.
    """

    def __init__(self, context: ShardContext, participation: Participation, ownership: Ownership) -> None:
        self._mongod = context.mongod
        self._participation = participation
        self._ownership = ownership
        self._stashes = {donor: stash_namespace(participation.source_uuid, donor) for donor in participation.donors}
        self._used_stashes: set[str] = set()
        self._lock = trio.Lock()

    async def open(self) -> None:
        """Create the stashes, find the non-empty ones, and complete interrupted batches."""
        for donor, namespace in self._stashes.items():
            await local_collections.create(self._mongod, namespace)
            if not await local_collections.is_empty(self._mongod, namespace):
                self._used_stashes.add(donor)
        for donor in sorted(self._used_stashes):
            stashed = await all_documents(self._mongod, self._stashes[donor], {})
            known = await self._look_up([identity_of(each) for each in stashed])
            known.heal()
            for part in _parts(known.writes):
                await self._execute(part)

    async def apply(
        self, donor: str, gone: Sequence[bytes], documents: Sequence[bytes], progress: PullProgress
    ) -> None:
        """Write a batch of one donor, and the progress that it reaches.

        Args:
            gone: raw ``{_id}`` of documents that it does not hand over.
            documents: raw documents that it hands over.

        Raises:
            CommandError: DuplicateKey, a unique index does not allow a document.
        """
        async with self._lock:
            known = await self._look_up([*gone, *map(identity_of, documents)])
            known.apply(donor, gone, documents)
            self._used_stashes |= {each.place for each in known.writes if each.place is not None}
            parts = list(_parts(known.writes))
            for part in parts[:-1]:
                await self._execute(part)
            await self._execute(parts[-1] if parts else [], progress)

    async def check_no_conflict(self) -> None:
        """Refuse two documents with the same ``_id`` (5356800)."""
        for donor in sorted(self._used_stashes):
            if not await local_collections.is_empty(self._mongod, self._stashes[donor]):
                raise CommandError(STASH_NOT_EMPTY, f"Documents of shard {donor} have the same _id as another shard's")
            self._used_stashes.discard(donor)

    async def _look_up(self, identities: Sequence[bytes]) -> KnownDocuments:
        known = KnownDocuments()
        for start in range(0, len(identities), _LOOKED_UP):
            some = identities[start : start + _LOOKED_UP]
            for document in await self._find(self._participation.temporary, some):
                known.collection[identity_key(document)] = (self._ownership.donor_of(document), document)
            for donor in self._used_stashes:
                stash = known.stashes.setdefault(donor, {})
                stash |= {identity_key(each): each for each in await self._find(self._stashes[donor], some)}
        return known

    async def _find(self, namespace: Namespace, identities: Sequence[bytes]) -> list[bytes]:
        values = b"".join(
            each[4:5] + b"%d\0" % position + each[4 + _VALUE_AT : -1] for position, each in enumerate(identities)
        )
        wanted = rawbson.wrap_value(rawbson.ARRAY, rawbson.from_elements(values), b"$in")
        query = raw_document(rawbson.wrap_value(rawbson.OBJECT, wanted, b"_id"))
        return await all_documents(self._mongod, namespace, {"filter": query})

    async def _execute(self, writes: Sequence[Write], progress: PullProgress | None = None) -> None:
        operations = [operation for each in writes for operation in self._operations(each)]
        if progress is not None:
            document = progress.to_document(self._participation.id)
            operations.append({"op": "i", "ns": f"config.{PROGRESS}", "o": document})
        if operations:
            apply = {"applyOps": operations, "allowAtomic": False, "bypassDocumentValidation": True}
            await self._mongod.write("admin", apply)

    def _operations(self, write: Write) -> Iterator[Mapping[str, Any]]:
        """Convert a write to oplog operations; an insert replaces the document with the same ``_id``.

        Such a replacement is an update, in which mongod would fill in empty timestamps.
        """
        if write.place is None:
            place: dict[str, Any] = {
                "ns": str(self._participation.temporary),
                "ui": Binary.from_uuid(self._participation.id),
            }
        else:
            place = {"ns": str(self._stashes[write.place])}
        if write.document is None or has_empty_timestamp(write.document):
            yield {"op": "d", **place, "o": raw_document(write.identity)}
        if write.document is not None:
            yield {"op": "i", **place, "o": raw_document(write.document)}


def _parts(writes: Sequence[Write]) -> Iterator[list[Write]]:
    """Split the writes into parts of one command each; a document above the limit is a part of its own."""
    part: list[Write] = []
    size = 0
    for each in writes:
        added = len(each.document or each.identity)
        if part and (len(part) == _WRITES_MAX or size + added > _BYTES_MAX):
            yield part
            part, size = [], 0
        part.append(each)
        size += added
    if part:
        yield part
