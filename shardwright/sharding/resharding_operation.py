"""A resharding operation in its coordinator's document and in ``$currentOp``, and the totals of all operations.

The totals since the start of a process are ``serverStatus.shardingStatistics.resharding``. A config daemon counts the
operations that it has coordinated, a shard daemon those that it has taken part in. The names are MongoDB 6.0's.
"""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from uuid import UUID

from bson.binary import Binary
from bson.int64 import Int64

from shardwright.sharding.document_fields import optional, required, required_uuid
from shardwright.sharding.namespace import Namespace
from shardwright.sharding.resharding_participation import (
    CoordinatorState,
    DonorState,
    Participation,
    RecipientState,
    temporary_namespace,
)
from shardwright.sharding.shard_key import ShardKeyPattern
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.rawbson import encode_document, raw_document

_BOUNDS_MILLIS: Final = (10, 100, 1_000, 10_000)

_DONORS: Mapping[CoordinatorState, DonorState] = {
    CoordinatorState.CLONING: DonorState.DONATING_INITIAL_DATA,
    CoordinatorState.APPLYING: DonorState.DONATING_OPLOG_ENTRIES,
    CoordinatorState.BLOCKING_WRITES: DonorState.PREPARING_TO_BLOCK_WRITES,
    CoordinatorState.COMMITTING: DonorState.BLOCKING_WRITES,
}
_RECIPIENTS: Mapping[CoordinatorState, RecipientState] = {
    CoordinatorState.CLONING: RecipientState.CREATING_COLLECTION,
    CoordinatorState.APPLYING: RecipientState.APPLYING,
    CoordinatorState.BLOCKING_WRITES: RecipientState.APPLYING,
    CoordinatorState.COMMITTING: RecipientState.STRICT_CONSISTENCY,
}
"""Minimum states of donors and recipients by the coordinator's state."""


class LatencyHistogram:
    """Counts of durations by order of magnitude."""

    def __init__(self) -> None:
        self._counts = [0] * (len(_BOUNDS_MILLIS) + 1)

    def add(self, seconds: float) -> None:
        """Count a duration."""
        self._counts[bisect_right(_BOUNDS_MILLIS, seconds * 1000)] += 1

    def to_document(self) -> dict[str, Any]:
        """Build the counts by range of milliseconds."""
        low, *others = _BOUNDS_MILLIS
        pairs = zip(_BOUNDS_MILLIS, others, strict=False)
        names = [f"(-inf, {low})", *(f"[{start}, {end})" for start, end in pairs), f"[{_BOUNDS_MILLIS[-1]}, inf)"]
        ranges = {name: {"count": Int64(count)} for name, count in zip(names, self._counts, strict=True)}
        return {**ranges, "totalCount": Int64(sum(self._counts))}


@dataclass(slots=True)
class ReshardingStatistics:
    """Totals of a process.

    Attributes:
        started, succeeded, failed, canceled: operations; one in which a shard is donor and recipient is one.
        documents_copied, bytes_copied: cloned data.
        changes_fetched, changes_applied: concurrent changes, which are the newest versions of documents.
        stored, deleted: applied changes, by whether there is a newest version.
        held_writes: writes that had to wait for a critical section.
        chunk_imbalance: difference between recipients' numbers of chunks after the last operation.
        remaining_millis: the shortest and the longest remaining time of a recipient in the present operation.
        fetching: durations of fetching a batch of the clone.
        applying: durations of writing a batch of changes.
    """

    started: int = 0
    succeeded: int = 0
    failed: int = 0
    canceled: int = 0
    documents_copied: int = 0
    bytes_copied: int = 0
    changes_fetched: int = 0
    changes_applied: int = 0
    stored: int = 0
    deleted: int = 0
    held_writes: int = 0
    chunk_imbalance: int = 0
    remaining_millis: tuple[int, int] = (0, 0)
    fetching: LatencyHistogram = field(default_factory=LatencyHistogram)
    applying: LatencyHistogram = field(default_factory=LatencyHistogram)

    def end(self, *, is_success: bool, is_canceled: bool) -> None:
        """Count the end of an operation."""
        self.remaining_millis = (0, 0)
        if is_success:
            self.succeeded += 1
        elif is_canceled:
            self.canceled += 1
        else:
            self.failed += 1

    def to_section(self) -> dict[str, Any]:
        """Build the section ``shardingStatistics``, which lacks ``resharding`` until the first operation."""
        if not self.started:
            return {}
        shortest, longest = self.remaining_millis
        counts = {
            "countReshardingOperations": self.started,
            "countReshardingSuccessful": self.succeeded,
            "countReshardingFailures": self.failed,
            "countReshardingCanceled": self.canceled,
            "documentsCopied": self.documents_copied,
            "bytesCopied": self.bytes_copied,
            "oplogEntriesApplied": self.changes_applied,
            "countWritesDuringCriticalSection": self.held_writes,
            "oplogEntriesFetched": self.changes_fetched,
            "lastOpEndingChunkImbalance": self.chunk_imbalance,
        }
        remaining = {
            "minShardRemainingOperationTimeEstimatedMillis": shortest,
            "maxShardRemainingOperationTimeEstimatedMillis": longest,
        }
        # An operation's documents may already exist, so inserts cannot be told from updates.
        changes = {"insert": 0, "update": self.stored, "delete": self.deleted}
        return {
            "resharding": {
                **{name: Int64(value) for name, value in counts.items()},
                "opcounters": {name: Int64(value) for name, value in changes.items()},
                **{name: Int64(value) for name, value in remaining.items()},
                "oplogApplierApplyBatchLatencyMillis": self.applying.to_document(),
                "collClonerFillBatchForInsertLatencyMillis": self.fetching.to_document(),
            }
        }


@dataclass(frozen=True, slots=True)
class ReshardingOperation:
    """One operation.

    Attributes:
        participation: the part that participants receive; without recipients until the chunks are planned.
        chunk_count: the requested number of chunks; None for the present number.
        zones: the zones of the new key as requested, ``{zone, min, max}``; None if none were given.
        preset_chunks: chunks given by the caller, ``{recipientShardId, min, max}``; None if none were given.
        approximate_bytes: the donors' total, once they have reported it.
        approximate_documents: the donors' total, once they have reported it.
    """

    participation: Participation
    state: CoordinatorState = CoordinatorState.INITIALIZING
    chunk_count: int | None = None
    zones: Sequence[Mapping[str, Any]] | None = None
    preset_chunks: Sequence[Mapping[str, Any]] | None = None
    approximate_bytes: int = 0
    approximate_documents: int = 0
    abort_reason: Mapping[str, Any] = field(default_factory=dict)

    @property
    def id(self) -> UUID:
        """Id of the operation, which becomes the UUID of the collection."""
        return self.participation.id

    @property
    def namespace(self) -> Namespace:
        """The collection."""
        return self.participation.namespace

    @property
    def abort_error(self) -> CommandError | None:
        """The error with which the operation ends; None if it is not being aborted."""
        if self.state is not CoordinatorState.ABORTING:
            return None
        code = int(self.abort_reason.get("code", ErrorCode.ReshardCollectionAborted))
        return CommandError(code, str(self.abort_reason.get("errmsg", "aborted")))

    def is_same_request(self, other: "ReshardingOperation") -> bool:
        """Whether two operations were requested with the same arguments."""
        return (
            self.namespace == other.namespace
            and self.participation.source_uuid == other.participation.source_uuid
            and self.participation.key.document == other.participation.key.document
            and self.chunk_count == other.chunk_count
            and _encoded(self.zones) == _encoded(other.zones)
            and _encoded(self.preset_chunks) == _encoded(other.preset_chunks)
        )

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> "ReshardingOperation":
        """Read a document of the collection; raise NoSuchKey, TypeMismatch or BadValue."""
        participation = Participation(
            id=required_uuid(document, "_id"),
            namespace=Namespace.parse(required(document, "ns", str)),
            source_uuid=required_uuid(document, "ui"),
            key=ShardKeyPattern.from_bson(encode_document(required(document, "reshardingKey", Mapping))),
            donors=tuple(required(each, "id", str) for each in required(document, "donorShards", list)),
            recipients=tuple(required(each, "id", str) for each in required(document, "recipientShards", list)),
        )
        return cls(
            participation=participation,
            state=CoordinatorState(required(document, "state", str)),
            chunk_count=optional(document, "numInitialChunks", int),
            zones=optional(document, "zones", list),
            preset_chunks=optional(document, "presetReshardedChunks", list),
            approximate_bytes=int(document.get("approxBytesToCopy", 0)),
            approximate_documents=int(document.get("approxDocumentsToCopy", 0)),
            abort_reason=optional(document, "abortReason", Mapping) or {},
        )

    def to_document(self) -> dict[str, Any]:
        """Build the document with MongoDB's fields. The requested chunks are kept for the next primary."""
        told = self.participation
        document: dict[str, Any] = {
            "_id": Binary.from_uuid(told.id),
            "ns": str(told.namespace),
            "ui": Binary.from_uuid(told.source_uuid),
            "tempNs": str(temporary_namespace(told.namespace, told.source_uuid)),
            "reshardingKey": raw_document(told.key.document),
            "state": str(self.state),
            "donorShards": _entries(told.donors, _DONORS.get(self.state, "unused")),
            "recipientShards": _entries(told.recipients, _RECIPIENTS.get(self.state, "unused")),
            "active": True,
            "approxBytesToCopy": Int64(self.approximate_bytes),
            "approxDocumentsToCopy": Int64(self.approximate_documents),
        }
        requested = {
            "numInitialChunks": self.chunk_count,
            "zones": self.zones,
            "presetReshardedChunks": self.preset_chunks,
            "abortReason": self.abort_reason or None,
        }
        return document | {name: value for name, value in requested.items() if value is not None}


def _entries(shard_ids: Sequence[str], state: str) -> list[dict[str, Any]]:
    return [{"id": each, "mutableState": {"state": str(state)}} for each in shard_ids]


def _encoded(documents: Sequence[Mapping[str, Any]] | None) -> list[bytes] | None:
    return None if documents is None else [encode_document(each) for each in documents]


def shown_operation(role: str, told: Participation, seconds: float, details: Mapping[str, Any]) -> dict[str, Any]:
    """Build the ``$currentOp`` entry of one role in an operation: ``Coordinator``, ``Donor`` or ``Recipient``.

    ``seconds`` is the duration so far; ``details`` are the fields that only this role has.
    """
    namespace = str(told.namespace)
    command = {
        "reshardCollection": namespace,
        "key": raw_document(told.key.document),
        "unique": False,
        "collation": {"locale": "simple"},
    }
    return {
        "type": "op",
        "desc": f"Resharding{role}Service {told.id}",
        "op": "command",
        "ns": namespace,
        "originatingCommand": command,
        "totalOperationTimeElapsedSecs": Int64(seconds),
        **details,
        "opStatus": "running",
    }


def remaining_millis(*, elapsed_millis: int, copied: int, to_copy: int, applied: int, fetched: int) -> int | None:
    """Estimate the time until a recipient has applied all known changes; None without a basis for an estimate.

    While it clones, applying the changes is expected to take as long again. ``elapsed_millis`` is the duration so far
    of the present phase, cloning (in bytes) or applying (in changes).
    """
    if copied < to_copy:
        return None if copied == 0 else elapsed_millis * (to_copy - copied) // copied * 2
    if fetched <= applied:
        return 0
    return None if applied == 0 else elapsed_millis * (fetched - applied) // applied
