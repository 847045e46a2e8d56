"""A resharding operation in its coordinator's document and in ``$currentOp``, with its remaining time."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from bson.binary import Binary
from bson.int64 import Int64

from shardwright.sharding.document_fields import optional, required, required_uuid
from shardwright.sharding.namespace import Namespace
from shardwright.sharding.resharding.participation import Participation, temporary_namespace
from shardwright.sharding.resharding.states import CoordinatorState, DonorState, RecipientState
from shardwright.sharding.shard_key import ShardKeyPattern
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.rawbson import encode_document, raw_document

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
