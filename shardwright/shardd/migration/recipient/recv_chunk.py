"""The arguments of ``_recvChunkStart``, and a migration's progress on its recipient: the reply to ``_recvChunkStatus``.

States, their order and the format of the reply are MongoDB 6.0.5's. Steps and metrics follow the states.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import Any, Final, Self
from uuid import UUID

import trio
from bson.int64 import Int64

from shardwright.daemon.metrics import Metrics
from shardwright.shardd.context.shard_context import ShardContext, log_change
from shardwright.shardd.migration.active_migrations import (
    MigrationAttempt,
    StepTimes,
    attempts_from,
    migration_session_argument,
)
from shardwright.shardd.orphans.range_deletion_tasks import KeyRange
from shardwright.sharding.chunks import ChunkRange
from shardwright.sharding.document_fields import optional, optional_uuid, required, required_uuid
from shardwright.sharding.namespace import Namespace, full_namespace
from shardwright.sharding.shard_key import ShardKeyPattern
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.rawbson import raw_document
from shardwright.wire.request import Request

WAIT_SECONDS_MAX: Final = 1.0
"""Limit of the wait for ``waitForSteadyOrDone``."""


@dataclass(frozen=True, slots=True)
class ReceiveRequest:
    """A request to receive a range.

    Attributes:
        session_id: the migration session id of this attempt.
        collection_uuid: its UUID on the donor; None if the request omits it.
        donor_connection_string: ``set/host:port,…`` of the donor.
        recipient: id of this shard.
        lsid: the logical session in which the donor sends its commands.
        txn_number: the transaction number of the donor's commands.
        secondary_throttle: whether to wait for secondaries after every batch of documents.
        write_concern: the write concern to wait for; empty for the default.
        attempts: the donor's record of the attempts; this one is the last.
    """

    migration_id: UUID
    session_id: str
    namespace: Namespace
    collection_uuid: UUID | None
    pattern: ShardKeyPattern
    range: ChunkRange
    donor: str
    donor_connection_string: str
    recipient: str
    lsid: Mapping[str, Any]
    txn_number: int
    secondary_throttle: bool
    write_concern: Mapping[str, Any]
    attempts: tuple[MigrationAttempt, ...] = ()

    @classmethod
    def from_request(cls, request: Request) -> Self:
        """Read the arguments of a command.

        Raises NoSuchKey, TypeMismatch, InvalidNamespace, InvalidUUID or BadValue if they are malformed.
        """
        document = request.document
        namespace = full_namespace(request)
        connection_string = required(document, "from", str)
        session_id = migration_session_argument(request)
        pattern = ShardKeyPattern.from_bson(_raw(request, b"shardKeyPattern"))
        throttle = document.get("secondaryThrottle", False)
        return cls(
            migration_id=required_uuid(document, "uuid"),
            session_id=session_id,
            namespace=namespace,
            collection_uuid=optional_uuid(document, "collectionUUID"),
            pattern=pattern,
            range=ChunkRange.of(pattern, _raw(request, b"min"), _raw(request, b"max")),
            donor=required(document, "fromShardName", str),
            donor_connection_string=connection_string,
            recipient=required(document, "toShardName", str),
            lsid=required(document, "lsid", Mapping),
            txn_number=required(document, "txnNumber", int),
            secondary_throttle=bool(throttle),
            write_concern=optional(document, "writeConcern", Mapping) or {},
            attempts=attempts_from(optional(document, "attempts", list) or ()),
        )

    @property
    def key_range(self) -> KeyRange:
        """The range in its persisted form."""
        return KeyRange(self.range.min, self.range.max)


def _raw(request: Request, name: bytes) -> bytes:
    """Return a document argument, raw."""
    value = request.raw_object(name)
    if value is None:
        raise CommandError(ErrorCode.NoSuchKey, f'Missing expected field "{name.decode(errors="replace")}"')
    return value


class ReceiveState(StrEnum):
    """The states of a recipient, in order."""

    READY = "ready"
    CLONE = "clone"
    CATCHUP = "catchup"
    STEADY = "steady"
    COMMIT_START = "commitStart"
    ENTERED_CRITICAL_SECTION = "enteredCriticalSection"
    DONE = "done"
    FAIL = "fail"
    ABORT = "abort"


_UNTIL_STEADY: Final = frozenset({ReceiveState.READY, ReceiveState.CLONE, ReceiveState.CATCHUP})


class ReceiveStatus:
    """The progress of one attempt to receive a range.

    Attributes:
        error: the error of an attempt in state `ReceiveState.FAIL`.
        cloned: number of documents cloned, including earlier attempts that this one resumes.
        catchup: number of modified documents applied during the catch-up.
        steady: number of modified documents applied since then.
    """

    def __init__(self, request: ReceiveRequest | None) -> None:
        self.state = ReceiveState.READY
        self.error: CommandError | None = None
        self.is_active = request is not None
        self.cloned = 0
        self.cloned_bytes = 0
        self.catchup = 0
        self.steady = 0
        self._request = request
        self._changes = trio.lowlevel.ParkingLot()

    def enter(self, state: ReceiveState) -> None:
        """Change the state."""
        self.state = state
        self._changes.unpark_all()

    def fail(self, error: CommandError) -> None:
        """Enter the state `ReceiveState.FAIL`."""
        self.error = error
        self.enter(ReceiveState.FAIL)

    def end(self) -> None:
        """Record that the attempt is over; its last state remains visible."""
        self.is_active = False
        self._changes.unpark_all()

    async def wait(self, is_reached: Callable[[ReceiveState], bool]) -> None:
        """Return when ``is_reached`` is true of the state, or the attempt is over."""
        while self.is_active and not is_reached(self.state):
            await self._changes.park()

    async def wait_steady_or_done(self) -> None:
        """Return when the recipient is steady or past that, at the latest after `WAIT_SECONDS_MAX`."""
        with trio.move_on_after(WAIT_SECONDS_MAX):
            while self.state in _UNTIL_STEADY:
                await self._changes.park()

    def counts(self) -> dict[str, Any]:
        """Return the ``counts`` of the reply."""
        return {
            "cloned": Int64(self.cloned),
            "clonedBytes": Int64(self.cloned_bytes),
            "catchup": Int64(self.catchup),
            "steady": Int64(self.steady),
        }

    def report(self) -> dict[str, Any]:
        """Return the reply to ``_recvChunkStatus``, without ``waited``."""
        request = self._request
        report: dict[str, Any] = {"active": self.is_active}
        if self.is_active and request is not None:
            report["sessionId"] = request.session_id
        report |= {
            "ns": str(request.namespace) if request else "",
            "from": request.donor_connection_string if request else "",
            "fromShardId": request.donor if request else "",
            "min": raw_document(request.range.min) if request else {},
            "max": raw_document(request.range.max) if request else {},
            "shardKeyPattern": raw_document(request.pattern.document) if request else {},
            "supportsCriticalSectionDuringCatchUp": True,
            "state": str(self.state),
        }
        if self.error is not None and self.state is ReceiveState.FAIL:
            report["errmsg"] = f"migrate failed: {self.error.code_name}: {self.error.message}"
        report["counts"] = self.counts()
        return report


class RecipientStep(IntEnum):
    """The steps, named after their results; MongoDB's fail points and changelog number them."""

    OLD_RANGES_DELETED = 1
    COLLECTION_CREATED = 2
    RANGE_REGISTERED = 3
    CLONED = 4
    CAUGHT_UP = 5
    MODIFICATIONS_DRAINED = 6
    HISTORY_DRAINED = 7
    CRITICAL_SECTION_LEFT = 8


class Steps(StepTimes):
    """The steps of one attempt."""

    def __init__(self, context: ShardContext, request: ReceiveRequest) -> None:
        super().__init__(RecipientStep)
        self._context = context
        self._request = request

    async def finish(self, step: RecipientStep) -> None:
        """Record that a step is done, and wait at its fail point if that is on."""
        self.note(step)
        if step is not RecipientStep.CRITICAL_SECTION_LEFT:
            await self._context.fail_points.hang_while(f"migrateThreadHangAtStep{step.value}")

    async def log(self, *, is_success: bool) -> None:
        """Write ``moveChunk.to`` to the changelog, in the format of MongoDB 6.0.5."""
        request = self._request
        details = {
            **self.millis,
            **request.range.to_document(),
            "to": request.recipient,
            "from": request.donor,
            "note": "success" if is_success else "aborted",
        }
        await log_change(self._context, "moveChunk.to", str(request.namespace), details)


_OUTCOMES: Final = {
    ReceiveState.DONE: "received",
    ReceiveState.FAIL: "failed",
    ReceiveState.ABORT: "aborted",
}


class RecipientMetrics:
    """Counters of migrations to this shard, and gauges of the current one.

    Args:
        current: returns the status of the last attempt.
    """

    def __init__(self, metrics: Metrics, current: Callable[[], ReceiveStatus]) -> None:
        self._ended = metrics.labelled_counter(
            "recipient_migrations", "Finished attempts to receive a range", "outcome", _OUTCOMES.values()
        )
        self._documents = metrics.counter("recipient_documents_cloned", "Documents cloned from other shards")
        self._bytes = metrics.counter("recipient_bytes_cloned", "Bytes of documents cloned from other shards")

        def read(value: Callable[[ReceiveStatus], float]) -> Callable[[], float]:
            def read_now() -> float:
                status = current()
                return value(status) if status.is_active else 0

            return read_now

        gauge = metrics.gauge
        gauge(
            "recipient_migration_active",
            "1 while this shard is the recipient in a migration, else 0",
            read(lambda status: 1),
        )
        gauge(
            "recipient_migration_documents_cloned",
            "Documents cloned by the current migration to this shard",
            read(lambda status: status.cloned),
        )
        gauge(
            "recipient_migration_bytes_cloned",
            "Bytes cloned by the current migration to this shard",
            read(lambda status: status.cloned_bytes),
        )
        gauge(
            "recipient_migration_changes_applied",
            "Changed documents applied by the current migration to this shard",
            read(lambda status: status.catchup + status.steady),
        )

    def ended(self, status: ReceiveStatus) -> None:
        """Count an attempt that has ended."""
        outcome = _OUTCOMES.get(status.state)
        if outcome is not None:  # otherwise it has not begun
            self._ended.add(outcome)
            self._documents.add(status.cloned)
            self._bytes.add(status.cloned_bytes)
