"""A donor's state: its steps, what it persists for the next primary, and its link to the recipient.

Each step has its time for the changelog and the log, and a fail point after it. Every write of `DonorStore` waits for a
majority, so that the next primary finds it.

``config.migrationAttempts`` has the state with which a donor resumes a migration after a restart or failover. MongoDB
does not resume migrations and has no such collection. Each of its documents belongs to one of
``migrationCoordinators``.

`RecipientLink` sends the donor's requests to the recipient. The critical section may begin once the remaining changes
can be transferred in next to no time (`BacklogLimit`). Before the commit, both sides' documents are compared
(`verify_range`).
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from enum import IntEnum
from typing import Any, Final
from uuid import UUID

import trio
from bson.binary import Binary
from bson.int64 import Int64

from shardwright.daemon.sidecar.mongod import LocalMongod
from shardwright.shardd.context.shard_context import ShardContext, log_change, send_to_shard
from shardwright.shardd.exchange.remote_sets import as_command_error, repeated
from shardwright.shardd.local_mongod.local_collections import MAJORITY, ConfigCollection
from shardwright.shardd.migration.active_migrations import (
    MIGRATION_ATTEMPTS,
    MIGRATION_COORDINATORS,
    ActiveDonorMigration,
    MigrationAttempt,
    MigrationCoordinatorDocument,
    StepTimes,
    attempts_from,
)
from shardwright.shardd.migration.donor.clone_source import CloneSource
from shardwright.shardd.migration.donor.move_range import MovePlan, MoveRangeRequest
from shardwright.shardd.migration.donor.range_documents import RangeDigest, digest
from shardwright.sharding.bson_text import document_text
from shardwright.sharding.document_fields import required, required_uuid
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import BackendError, CommandError
from shardwright.wire.logger import Logger, get_logger
from shardwright.wire.rawbson import encode_document, raw_document

logger = get_logger("shardd.migration.donor")

_FAILED: Final = frozenset({"fail", "abort"})


class DonorStep(IntEnum):
    """The steps, named after their results; MongoDB's fail points and changelog number them."""

    REQUEST_READ = 1
    CHECKED_AND_PERSISTED = 2
    RECIPIENT_STARTED = 3
    CAUGHT_UP = 4
    RECIPIENT_COMMITTED = 5
    CONFIG_COMMITTED = 6


class Steps(StepTimes):
    """The steps of one migration."""

    def __init__(self, context: ShardContext, active: ActiveDonorMigration, request: MoveRangeRequest) -> None:
        super().__init__(DonorStep)
        self._active = active
        self._context = context
        self._namespace = str(request.namespace)
        self._bounds: dict[str, Any] = {
            name: raw_document(bound) for name, bound in (("min", request.min), ("max", request.max)) if bound
        }
        self._recipient = request.recipient
        self._logger = logger.bind(namespace=self._namespace, recipient=request.recipient)

    def set_bounds(self, low: bytes, high: bytes) -> None:
        """Set both bounds of the range, because the request may have only one."""
        self._bounds = {"min": raw_document(low), "max": raw_document(high)}
        self._logger = self._logger.bind(range=f"[{document_text(low)}, {document_text(high)})")

    async def finish(self, step: DonorStep, logger: Logger | None = None, **details: object) -> None:
        """Record and log that a step is done, and wait at its fail point if that is on.

        Args:
            logger: the logger of the current attempt, if there is one already.
        """
        self.note(step)
        self._active.message = self.text
        (logger or self._logger).info(
            "Finished a migration step", step=step.name.lower(), duration_ms=self.millis[self.text], **details
        )
        await self._context.fail_points.hang_while(f"moveChunkHangAtStep{step.value}")

    async def log(self, what: str, **details: object) -> None:
        """Write ``moveChunk.<what>`` with the range and the shards to the changelog."""
        donor = self._context.require_identity().shard_name
        entry = {**self._bounds, "from": donor, "to": self._recipient, **details}
        await log_change(self._context, f"moveChunk.{what}", self._namespace, entry)

    async def log_times(self, error: CommandError | None) -> None:
        """Write ``moveChunk.from`` to the changelog: the times of the finished steps, and the error if any."""
        donor = self._context.require_identity().shard_name
        end = {"note": "success"} if error is None else {"note": "aborted", "errmsg": error.message}
        entry = {**self.millis, **self._bounds, "to": self._recipient, "from": donor, **end}
        await log_change(self._context, "moveChunk.from", self._namespace, entry)


@dataclass(frozen=True, slots=True)
class MigrationAttempts:
    """One document.

    Attributes:
        attempts: all attempts so far; the last one is active.
        has_entered_critical_section: whether the critical section has begun, or was about to. From then on a new
            primary does not resume the migration, but queries the config servers for its outcome.
    """

    id: UUID
    request: MoveRangeRequest
    attempts: tuple[MigrationAttempt, ...] = ()
    has_entered_critical_section: bool = False

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> "MigrationAttempts":
        """Read a document of the collection, or raise NoSuchKey or TypeMismatch."""
        return cls(
            id=required_uuid(document, "_id"),
            request=MoveRangeRequest.from_document(required(document, "request", Mapping)),
            attempts=attempts_from(required(document, "attempts", list)),
            has_entered_critical_section=required(document, "enteredCriticalSection", bool),
        )

    def to_document(self) -> dict[str, Any]:
        """Return the document in its persisted form."""
        return {
            "_id": Binary.from_uuid(self.id),
            "nss": str(self.request.namespace),
            "request": self.request.to_document(),
            "attempts": [attempt.to_document() for attempt in self.attempts],
            "enteredCriticalSection": self.has_entered_critical_section,
        }

    def with_new(self, session_id: str, now: datetime) -> "MigrationAttempts":
        """Return a copy with a new active attempt, which ends the previous one."""
        attempts = (*self._ended(now), MigrationAttempt(session_id, now))
        return replace(self, attempts=attempts, has_entered_critical_section=False)

    def with_progress(self, documents: int, size: int) -> "MigrationAttempts":
        """Return a copy with the current attempt's number of cloned documents, and their size in bytes."""
        *before, last = self.attempts
        return replace(self, attempts=(*before, replace(last, documents=documents, bytes=size)))

    def with_critical_section(self) -> "MigrationAttempts":
        """Return a copy in which the critical section has begun."""
        return replace(self, has_entered_critical_section=True)

    def _ended(self, now: datetime) -> tuple[MigrationAttempt, ...]:
        if not self.attempts:
            return ()
        *before, last = self.attempts
        return (*before, replace(last, end=now))


class DonorStore:
    """``config.migrationCoordinators`` and ``config.migrationAttempts`` of one shard.

    All methods raise CommandError if mongod refuses or is not primary, and BackendError if it does not answer.
    """

    def __init__(self, mongod: LocalMongod) -> None:
        self._coordinators = ConfigCollection(mongod, MIGRATION_COORDINATORS)
        self._attempts = ConfigCollection(mongod, MIGRATION_ATTEMPTS)

    async def load(self) -> list[tuple[MigrationCoordinatorDocument, MigrationAttempts | None]]:
        """Load the unfinished migrations, each with its attempts."""
        attempts: dict[UUID, MigrationAttempts] = {}
        for document in await self._attempts.all():
            each = MigrationAttempts.from_document(document)
            attempts[each.id] = each
        coordinators = map(MigrationCoordinatorDocument.from_document, await self._coordinators.all())
        return [(coordinator, attempts.get(coordinator.id)) for coordinator in coordinators]

    async def save_coordinator(self, document: MigrationCoordinatorDocument) -> None:
        """Insert a coordinator document, or replace it."""
        await self._coordinators.save(document.to_document())

    async def save_decision(self, document: MigrationCoordinatorDocument) -> None:
        """Add the decision to a coordinator document, if it exists."""
        await self._coordinators.change(Binary.from_uuid(document.id), {"decision": document.decision})

    async def save_attempts(self, document: MigrationAttempts) -> None:
        """Insert or replace the attempts at a migration."""
        await self._attempts.save(document.to_document())

    async def forget(self, migration_id: UUID) -> None:
        """Remove a finished migration. Its coordinator goes last: while it exists, the next primary repeats this."""
        await self._attempts.remove(Binary.from_uuid(migration_id))
        await self._coordinators.remove(Binary.from_uuid(migration_id))


class RecipientLostError(Exception):
    """The recipient has lost the current attempt: it was restarted, or another member has become primary."""


@dataclass(frozen=True, slots=True)
class RecipientStatus:
    """A reply to ``_recvChunkStatus`` or ``_recvChunkCommit`` about the current attempt.

    Attributes:
        state: the recipient's state, such as ``steady``.
        counts: ``cloned``, ``clonedBytes``, ``catchup`` and ``steady``.
        cluster_time: the reply's ``$clusterTime``, which is not before any of the recipient's writes.
    """

    state: str
    counts: Mapping[str, Any]
    cluster_time: Mapping[str, Any] | None


class RecipientLink:
    """Sends commands to the recipient of one migration.

    All methods raise CommandError if the recipient refused or could not be reached.
    """

    def __init__(self, context: ShardContext, coordinator: MigrationCoordinatorDocument, plan: MovePlan) -> None:
        self._context = context
        self._coordinator = coordinator
        self._plan = plan
        self._namespace = str(plan.request.namespace)

    async def start(self, attempts: MigrationAttempts) -> dict[str, Any]:
        """Make the recipient begin to receive, or resume an interrupted attempt; return its reply."""
        coordinator, plan = self._coordinator, self._plan
        start = {
            "_recvChunkStart": self._namespace,
            "uuid": Binary.from_uuid(coordinator.id),
            "lsid": dict(coordinator.lsid),
            "txnNumber": Int64(coordinator.txn_number),
            "sessionId": attempts.attempts[-1].session_id,
            "from": await self._own_connection_string(),
            "fromShardName": coordinator.donor,
            "toShardName": coordinator.recipient,
            **plan.range.to_document(),
            "shardKeyPattern": raw_document(plan.table.key_pattern.document),
            "secondaryThrottle": plan.request.secondary_throttle,
            "writeConcern": dict(plan.request.write_concern),
            # MongoDB does not send these two fields. Our recipients need them to resume.
            "collectionUUID": Binary.from_uuid(coordinator.collection_uuid),
            "attempts": [attempt.to_document() for attempt in attempts.attempts],
        }
        return await self._send(start)

    async def status(self, session_id: str) -> RecipientStatus:
        """Return the recipient's status, once it is steady or done, or after a second.

        Raises RecipientLostError if the recipient has lost this attempt, OperationIncomplete if it is busy with another
        migration, and OperationFailed if it has failed.
        """
        command = {"_recvChunkStatus": self._namespace, "waitForSteadyOrDone": True, "sessionId": session_id}
        return self.interpret(await self._send(command), session_id)

    async def commit(self, session_id: str) -> RecipientStatus:
        """Make the recipient apply the remaining changes and enter its critical section until `release`.

        Must not be repeated. After an error the outcome may be unknown.
        """
        command = {"_recvChunkCommit": self._namespace, "acquireCSOnRecipient": True, "sessionId": session_id}
        reply = await send_to_shard(self._context, self._coordinator.recipient, "admin", command)
        return RecipientStatus(reply.get("state", ""), reply.get("counts", {}), reply.get("$clusterTime"))

    async def abort(self, session_id: str) -> None:
        """Make the recipient abort the attempt."""
        await self._once({"_recvChunkAbort": self._namespace, "sessionId": session_id})

    async def release(self, session_id: str) -> None:
        """Make the recipient leave its critical section, after the decision of the config servers."""
        command = {"_recvChunkReleaseCritSec": self._namespace, "sessionId": session_id, "writeConcern": MAJORITY}
        await self._once(command)

    def interpret(self, reply: Mapping[str, Any], session_id: str) -> RecipientStatus:
        """Read a reply to `status`; errors are as there."""
        state, counts = reply.get("state", ""), reply.get("counts", {})
        is_about_this = reply.get("sessionId", session_id) == session_id and self._is_this_migration(reply)
        if state in _FAILED and is_about_this:
            raise CommandError(
                ErrorCode.OperationFailed, f"Data transfer error: {reply.get('errmsg') or 'aborted by the recipient'}"
            )
        if not reply.get("active"):
            raise RecipientLostError(f"the recipient is not active in the session {session_id}: it is {state!r}")
        if not is_about_this:
            raise CommandError(
                ErrorCode.OperationIncomplete,
                f"Unable to continue with the migration because the recipient is busy with another one: session "
                f"{reply.get('sessionId')}, namespace {reply.get('ns')}, from {reply.get('fromShardId')}; "
                f"expected session {session_id}, namespace {self._namespace}, from {self._coordinator.donor}",
            )
        return RecipientStatus(state, counts, reply.get("$clusterTime"))

    def _is_this_migration(self, reply: Mapping[str, Any]) -> bool:
        if (reply.get("ns"), reply.get("fromShardId")) != (self._namespace, self._coordinator.donor):
            return False
        encode, moved = self._plan.table.key_pattern.key_bytes, self._plan.range
        bounds = [encode(encode_document(reply.get(bound) or {})) for bound in ("min", "max")]
        return bounds == [moved.min_key, moved.max_key]

    async def _own_connection_string(self) -> str:
        catalog = await self._context.catalog()
        return (await catalog.shards())[self._coordinator.donor].host

    async def _once(self, command: Mapping[str, Any]) -> None:
        await send_to_shard(self._context, self._coordinator.recipient, "admin", command)

    async def _send(self, command: Mapping[str, Any]) -> dict[str, Any]:
        """Send an idempotent command, and repeat it when the network fails."""

        def log(error: CommandError) -> None:
            logger.warning(
                "Could not reach the recipient",
                namespace=self._namespace,
                shard=self._coordinator.recipient,
                command=next(iter(command)),
                error=str(error),
            )

        return await repeated(lambda: send_to_shard(self._context, self._coordinator.recipient, "admin", command), log)


async def verify_range(context: ShardContext, coordinator: MigrationCoordinatorDocument, plan: MovePlan) -> None:
    """Compute the range's digest on both sides concurrently, and raise DataCorruptionDetected if they differ."""
    collection = plan.table.collection
    digests: dict[str, RangeDigest] = {}
    errors: list[CommandError] = []

    async def ask_recipient() -> None:
        command = {
            "_shardsvrDigestRange": coordinator.namespace,
            "collectionUUID": Binary.from_uuid(collection.uuid),
            "shardKeyPattern": raw_document(collection.key_pattern.document),
            **plan.range.to_document(),
        }
        try:
            reply = await send_to_shard(context, coordinator.recipient, "admin", command)
            digests["recipient"] = RangeDigest.from_document(reply)
        except CommandError as error:
            errors.append(error)

    async def read_own() -> None:
        try:
            digests["donor"] = await digest(
                context.mongod, collection.namespace, collection.uuid, collection.key_pattern, plan.range
            )
        except (CommandError, BackendError) as error:
            errors.append(as_command_error(error))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask_recipient)
        nursery.start_soon(read_own)
    if errors:
        raise errors[0]
    own, its = digests["donor"], digests["recipient"]
    if own != its:
        raise CommandError(
            ErrorCode.DataCorruptionDetected,
            f"the documents of {coordinator.namespace} {plan.range} differ after their migration: the donor has "
            f"{own.documents} documents, the recipient {its.documents}; nothing has been committed",
        )
    logger.info("Verified a migration", namespace=coordinator.namespace, documents=own.documents)


_SMALL_IDS: Final = 64
_BIGGER_EVERY_SECONDS: Final = 5.0
_SHARE_MAX: Final = 0.1
"""MongoDB's ``maxCatchUpPercentageBeforeBlockingWrites``, as a fraction: the limit grows to this share of the clone."""


class BacklogLimit:
    """Maximum number of changed documents left at the beginning of the critical section.

    It is small at first, which keeps the pause for writers short. Writers that are faster than the recipient would keep
    a migration from ever ending, so the limit doubles with time, up to MongoDB's.
    """

    def __init__(self) -> None:
        self._since = time.monotonic()

    def is_met(self, source: CloneSource) -> bool:
        """Whether the critical section may begin: nothing is left to clone and few changes are queued."""
        if not source.is_clone_exhausted:
            return False
        doublings = int((time.monotonic() - self._since) / _BIGGER_EVERY_SECONDS)
        most = max(int(source.documents_cloned * _SHARE_MAX), _SMALL_IDS)
        return source.queued_ids <= min(_SMALL_IDS << min(doublings, 32), most)
