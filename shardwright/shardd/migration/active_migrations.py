"""The active migration of this shard, with its steps and its speed, and the persisted state of migrations.

A shard takes part in one migration at a time, as donor or as recipient. As in MongoDB's ``ActiveMigrationsRegistry``, a
request for the active migration joins it and gets its result. `DDLLocks.chunk_change` excludes splits and merges of the
same collection. `StepTimes` has the durations of its steps, on donor and recipient. `MigrationParameters` and the load
by clients (`ClientLoad`) slow it down.

**Documents.** The persisted state is in the ``config`` databases of donor and recipient, in MongoDB 6.0's schemas.
MongoDB has no ``migrationAttempts`` and ``migrationCheckpoints``; a migration resumes from them. Malformed documents
raise NoSuchKey or TypeMismatch.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import IntEnum
from typing import Any, Final
from uuid import UUID

import trio
from bson.binary import Binary
from bson.int64 import Int64
from bson.objectid import ObjectId

from shardwright.daemon.current_op import new_opid
from shardwright.daemon.operation_metrics import OperationMetrics
from shardwright.shardd.orphans.range_deletion_tasks import KeyRange
from shardwright.sharding.bson_text import document_text
from shardwright.sharding.document_fields import optional, required, required_uuid
from shardwright.sharding.versions import ChunkVersion
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.rawbson import is_string, type_name
from shardwright.wire.request import Request

MIGRATION_COORDINATORS: Final = "migrationCoordinators"
MIGRATION_RECIPIENTS: Final = "migrationRecipients"
MIGRATION_ATTEMPTS: Final = "migrationAttempts"
MIGRATION_CHECKPOINTS: Final = "migrationCheckpoints"
"""Collections of the ``config`` database."""

COMMITTED: Final = "committed"
ABORTED: Final = "aborted"
"""The values of a coordinator's ``decision``."""

CATCH_UP_SECONDS_MAX: Final = 6 * 3600.0
"""MongoDB's limit for clone and catch-up."""


def new_session_id(donor: str, recipient: str) -> str:
    """Return a new migration session id, which distinguishes the attempt's commands from all others'."""
    return f"{donor}_{recipient}_{ObjectId()}"


@dataclass(frozen=True, slots=True)
class MigrationCoordinatorDocument:
    """A document of the donor's ``config.migrationCoordinators``: a migration that is not finished on both sides.

    Attributes:
        session_id: the migration session id of its first attempt.
        lsid: the logical session in which the donor sends its commands.
        txn_number: the transaction number of the donor's commands.
        chunk_version: the chunk's version before the migration.
        decision: `COMMITTED`, `ABORTED`, or None while it is undecided.
    """

    id: UUID
    session_id: str
    lsid: Mapping[str, Any]
    txn_number: int
    namespace: str
    collection_uuid: UUID
    donor: str
    recipient: str
    range: KeyRange
    chunk_version: ChunkVersion
    decision: str | None = None

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> "MigrationCoordinatorDocument":
        """Read a document of the collection."""
        return cls(
            id=required_uuid(document, "_id"),
            session_id=required(document, "migrationSessionId", str),
            lsid=required(document, "lsid", Mapping),
            txn_number=required(document, "txnNumber", int),
            namespace=required(document, "nss", str),
            collection_uuid=required_uuid(document, "collectionUuid"),
            donor=required(document, "donorShardId", str),
            recipient=required(document, "recipientShardId", str),
            range=KeyRange.from_document(required(document, "range", Mapping)),
            chunk_version=ChunkVersion.from_value(required(document, "preMigrationChunkVersion", Mapping)),
            decision=optional(document, "decision", str),
        )

    def to_document(self) -> dict[str, Any]:
        """Return the document as MongoDB 6.0 writes it."""
        document: dict[str, Any] = {
            "_id": Binary.from_uuid(self.id),
            "migrationSessionId": self.session_id,
            "lsid": dict(self.lsid),
            "txnNumber": Int64(self.txn_number),
            "nss": self.namespace,
            "collectionUuid": Binary.from_uuid(self.collection_uuid),
            "donorShardId": self.donor,
            "recipientShardId": self.recipient,
            "range": self.range.to_document(),
            "preMigrationChunkVersion": self.chunk_version.to_document(),
        }
        if self.decision is not None:
            document["decision"] = self.decision
        return document


@dataclass(frozen=True, slots=True)
class MigrationRecipientDocument:
    """A document of the recipient's ``config.migrationRecipients``, which lives as long as its critical section.

    Its attributes are described at `MigrationCoordinatorDocument`.
    """

    id: UUID
    session_id: str
    namespace: str
    range: KeyRange
    donor: str
    lsid: Mapping[str, Any]
    txn_number: int

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> "MigrationRecipientDocument":
        """Read a document of the collection."""
        return cls(
            id=required_uuid(document, "_id"),
            session_id=required(document, "migrationSessionId", str),
            namespace=required(document, "nss", str),
            range=KeyRange.from_document(required(document, "range", Mapping)),
            donor=required(document, "donorShardIdForLoggingPurposesOnly", str),
            lsid=required(document, "lsid", Mapping),
            txn_number=required(document, "txnNumber", int),
        )

    def to_document(self) -> dict[str, Any]:
        """Return the document as MongoDB 6.0 writes it."""
        return {
            "_id": Binary.from_uuid(self.id),
            "nss": self.namespace,
            "migrationSessionId": self.session_id,
            "range": self.range.to_document(),
            "donorShardIdForLoggingPurposesOnly": self.donor,
            "lsid": dict(self.lsid),
            "txnNumber": Int64(self.txn_number),
        }


@dataclass(frozen=True, slots=True)
class MigrationAttempt:
    """One attempt at a migration, recorded on both sides. A checkpoint is trusted only if their records agree.

    Attributes:
        session_id: the attempt's migration session id.
        end: when it was abandoned; None for the last one.
        documents: number of documents it cloned.
    """

    session_id: str
    start: datetime
    end: datetime | None = None
    documents: int = 0
    bytes: int = 0

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> "MigrationAttempt":
        """Read one entry of ``attempts``."""
        return cls(
            session_id=required(document, "sessionId", str),
            start=required(document, "start", datetime),
            end=optional(document, "end", datetime),
            documents=required(document, "documents", int),
            bytes=required(document, "bytes", int),
        )

    def to_document(self) -> dict[str, Any]:
        """Return the entry of ``attempts``."""
        document: dict[str, Any] = {"sessionId": self.session_id, "start": self.start}
        if self.end is not None:
            document["end"] = self.end
        return {**document, "documents": Int64(self.documents), "bytes": Int64(self.bytes)}


def attempts_from(documents: Sequence[Mapping[str, Any]]) -> tuple[MigrationAttempt, ...]:
    """Read the list of a migration's attempts."""
    if not all(isinstance(document, Mapping) for document in documents):
        raise CommandError(ErrorCode.TypeMismatch, '"attempts" must be an array of documents')
    return tuple(MigrationAttempt.from_document(document) for document in documents)


class StepTimes:
    """The finished steps and their durations.

    Args:
        steps: the steps in order, numbered from 1.

    Attributes:
        done: the number of the last finished step; 0 at first.
        millis: milliseconds taken by each finished step, by its name in the changelog.
    """

    def __init__(self, steps: type[IntEnum]) -> None:
        self.done = 0
        self.millis: dict[str, int] = {}
        self._count = len(steps)
        self._last = time.monotonic()

    @property
    def text(self) -> str:
        """The last finished step, as ``currentOp`` and the changelog name it."""
        return f"step {self.done} of {self._count}"

    def note(self, step: IntEnum) -> None:
        """Record that a step is done and the next one begins."""
        now = time.monotonic()
        self.done = step.value
        self.millis[self.text] = round((now - self._last) * 1000)
        self._last = now


@dataclass
class MigrationParameters:
    """The parameters of one shard daemon.

    Attributes:
        verify: whether donor and recipient compare the range's documents before every commit (``verifyMigrations``).
        catch_up_seconds_max: limit for a migration to reach its critical section; then it is aborted
            (``migrationCatchUpTimeoutSecs``).
    """

    verify: bool = False
    catch_up_seconds_max: float = CATCH_UP_SECONDS_MAX


HEAVY_OPERATIONS_PER_SECOND: Final = 100
"""Rate above which clients would notice a clone running at full speed."""

_INTERVAL_SECONDS: Final = 0.2

_CLIENT_COMMANDS: Final = (
    *("aggregate", "count", "delete", "distinct", "find", "findAndModify", "findandmodify", "getMore", "insert"),
    "update",
)


class ClientLoad:
    """The rate of client operations on one daemon, as its metrics count them."""

    def __init__(self, operations: OperationMetrics, clock: Callable[[], float] = time.monotonic) -> None:
        self._operations = operations
        self._clock = clock
        self._counted_at = clock()
        self._count = self._count_now()
        self._is_heavy = False

    @property
    def is_heavy(self) -> bool:
        """Whether the rate since the last measurement is high; measured at most once per interval."""
        now = self._clock()
        elapsed = now - self._counted_at
        if elapsed >= _INTERVAL_SECONDS:
            count = self._count_now()
            self._is_heavy = count - self._count >= elapsed * HEAVY_OPERATIONS_PER_SECOND
            self._counted_at, self._count = now, count
        return self._is_heavy

    def _count_now(self) -> int:
        statistics = self._operations.statistics()
        return sum(statistics[name].count for name in _CLIENT_COMMANDS if name in statistics)


def migration_session_argument(request: Request) -> str:
    """Return the migration session id in a command, or raise NoSuchKey or TypeMismatch."""
    span = request.fields.get(b"sessionId")
    if span is None:
        raise CommandError(ErrorCode.NoSuchKey, 'Missing expected field "sessionId"')
    value = request.get(b"sessionId")
    if not is_string(value):
        raise CommandError(
            ErrorCode.TypeMismatch, f'"sessionId" had the wrong type. Expected string, found {type_name(span[0])}'
        )
    return value


@dataclass(frozen=True, slots=True)
class DonorMigrationKey:
    """The identity of one of a donor's migrations.

    Attributes:
        min: lower bound of the range, a shard key document; None if the request gave only the upper one.
        max: upper bound, a shard key document; None if the request gave only the lower one.
    """

    namespace: str
    min: bytes | None
    max: bytes | None
    recipient: str

    def __str__(self) -> str:
        low, high = ("?" if bound is None else document_text(bound) for bound in (self.min, self.max))
        return f"[{low}, {high}) for namespace {self.namespace} to {self.recipient}"


class ActiveDonorMigration:
    """A handle on a donor's migration, to wait for its end or to abort it.

    Attributes:
        migration_id: its UUID, once it has one.
        message: its progress for ``currentOp``.
        abort_reason: the reason of the requested abort; None without one.
        error: the error of a failed migration, once it has ended; None if it succeeded.
    """

    def __init__(self, key: DonorMigrationKey) -> None:
        self.key = key
        self.opid = new_opid()
        self.began = datetime.now(UTC)
        self.message = ""
        self.migration_id: UUID | None = None
        self.abort_reason: CommandError | None = None
        self.ended = trio.Event()
        self.error: CommandError | None = None
        self._on_abort: Callable[[CommandError], None] | None = None

    def abort(self, reason: CommandError) -> None:
        """Abort the migration, at once or as soon as there is something to abort; only the first reason counts."""
        if self.abort_reason is None:
            self.abort_reason = reason
            if self._on_abort is not None:
                self._on_abort(reason)

    def set_on_abort(self, on_abort: Callable[[CommandError], None]) -> None:
        """Set the function that aborts the migration, and call it at once if an abort has already been requested."""
        self._on_abort = on_abort
        if self.abort_reason is not None:
            on_abort(self.abort_reason)

    @contextmanager
    def abortable(self) -> Iterator[None]:
        """Cancel the block when the migration is aborted, and raise the reason for the abort."""
        with trio.CancelScope() as scope:
            self.set_on_abort(lambda _: scope.cancel())
            yield
        self._on_abort = None
        if self.abort_reason is not None:
            raise self.abort_reason

    async def wait_result(self) -> None:
        """Return when the range has moved, or raise the error of the migration."""
        await self.ended.wait()
        if self.error is not None:
            raise self.error


class ActiveMigrations:
    """The one migration in which this shard takes part, if any.

    Methods that begin a migration raise ConflictingOperationInProgress if the shard is busy with another one.

    Attributes:
        donor: that migration if this shard is its donor, else None.
    """

    def __init__(self) -> None:
        self.donor: ActiveDonorMigration | None = None
        self._receiving: str | None = None

    def join_donor_migration(self, key: DonorMigrationKey) -> ActiveDonorMigration | None:
        """Return the active migration if it is the requested one; None if no migration is active."""
        if self.donor is not None and self.donor.key == key:
            return self.donor
        self._check_free()
        return None

    def begin_donor_migration(self, key: DonorMigrationKey) -> ActiveDonorMigration:
        """Register a migration from this shard until `end_donor_migration`."""
        self._check_free()
        self.donor = ActiveDonorMigration(key)
        return self.donor

    def end_donor_migration(self, error: CommandError | None = None) -> None:
        """Record that the migration has ended; without an error, it succeeded."""
        active, self.donor = self.donor, None
        assert active is not None
        active.error = error
        active.ended.set()

    @contextmanager
    def receiving(self, namespace: str, range_text: str, donor: str) -> Iterator[None]:
        """Register a migration to this shard until the block ends.

        Args:
            range_text: the range as messages show it.
        """
        self._check_free()
        self._receiving = f"receiving chunk {range_text} for namespace {namespace} from {donor}"
        try:
            yield
        finally:
            self._receiving = None

    def _check_free(self) -> None:
        if self.donor is not None:
            raise _conflict(f"donating chunk {self.donor.key}")
        if self._receiving is not None:
            raise _conflict(self._receiving)


def _conflict(what: str) -> CommandError:
    return CommandError(
        ErrorCode.ConflictingOperationInProgress,
        f"Unable to start new balancer operation because this shard is currently {what}",
    )
