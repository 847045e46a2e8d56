"""The donor's persisted state: every write waits for a majority, so that the next primary finds it.

``config.migrationAttempts`` has the state with which a donor resumes a migration after a restart or failover. MongoDB
does not resume migrations and has no such collection. Each of its documents belongs to one of
``migrationCoordinators``.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any
from uuid import UUID

from bson.binary import Binary

from shardwright.daemon.sidecar.mongod import LocalMongod
from shardwright.shardd.local_mongod.config_collection import ConfigCollection
from shardwright.shardd.migration.documents import (
    MIGRATION_ATTEMPTS,
    MIGRATION_COORDINATORS,
    MigrationAttempt,
    MigrationCoordinatorDocument,
    attempts_from,
)
from shardwright.shardd.migration.donor.request import MoveRangeRequest
from shardwright.sharding.document_fields import required, required_uuid


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
