"""``config.migrationAttempts``: what a donor needs to go on with a migration after a restart or fail-over.

MongoDB has no such collection, as it resumes no migration: a document accompanies one of ``migrationCoordinators``.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any
from uuid import UUID

from bson.binary import Binary

from shardwright.shardd.migration.documents import MigrationAttempt, attempts_from
from shardwright.shardd.migration.donor.request import MoveRangeRequest
from shardwright.sharding.catalog.fields import required, required_uuid


@dataclass(frozen=True, slots=True)
class MigrationAttempts:
    """One document.

    Attributes:
        id: of the migration.
        request: what was asked for.
        attempts: all up to now, the last one being under way.
        has_entered_critical_section: whether the critical section has begun, or was about to. From then on a new
            primary does not go on with the migration, but finds out what the config servers know of it.
    """

    id: UUID
    request: MoveRangeRequest
    attempts: tuple[MigrationAttempt, ...] = ()
    has_entered_critical_section: bool = False

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> "MigrationAttempts":
        """Read a document of the collection.

        Raises:
            CommandError: NoSuchKey or TypeMismatch.
        """
        return cls(
            id=required_uuid(document, "_id"),
            request=MoveRangeRequest.from_document(required(document, "request", Mapping)),
            attempts=attempts_from(required(document, "attempts", list)),
            has_entered_critical_section=required(document, "enteredCriticalSection", bool),
        )

    def to_document(self) -> dict[str, Any]:
        """The document as it is written."""
        return {
            "_id": Binary.from_uuid(self.id),
            "nss": str(self.request.namespace),
            "request": self.request.to_document(),
            "attempts": [attempt.to_document() for attempt in self.attempts],
            "enteredCriticalSection": self.has_entered_critical_section,
        }

    def with_new(self, session_id: str, now: datetime) -> "MigrationAttempts":
        """After the start of an attempt, which ends the one before."""
        attempts = (*self._ended(now), MigrationAttempt(session_id, now))
        return replace(self, attempts=attempts, has_entered_critical_section=False)

    def with_progress(self, documents: int, size: int) -> "MigrationAttempts":
        """With what the attempt under way has cloned, in documents and bytes."""
        *before, last = self.attempts
        return replace(self, attempts=(*before, replace(last, documents=documents, bytes=size)))

    def with_critical_section(self) -> "MigrationAttempts":
        """After the beginning of the critical section."""
        return replace(self, has_entered_critical_section=True)

    def _ended(self, now: datetime) -> tuple[MigrationAttempt, ...]:
        if not self.attempts:
            return ()
        *before, last = self.attempts
        return (*before, replace(last, end=now))
