"""The active migration of this shard: one at a time, as donor or as recipient.

Like MongoDB's ``ActiveMigrationsRegistry``: a request for the active migration joins it and gets its result.
`DDLLocks.chunk_change` excludes splits and merges of the same collection.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import trio

from shardwright.shardd.context.operation_ids import new_opid
from shardwright.sharding.bson_text import document_text
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.rawbson import is_string
from shardwright.wire.request import Request
from shardwright.wire.type_names import type_name

if TYPE_CHECKING:
    from uuid import UUID


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
