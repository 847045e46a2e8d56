"""``config.migrationAttempts``: what a donor needs to resume a migration after a restart or failover.

MongoDB resumes no migrations and has no such collection. Each document belongs to one of ``migrationCoordinators``.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any
from uuid import UUID

from bson.binary import Binary

from shardwright.shardd.migration.documents import MigrationAttempt, attempts_from
from shardwright.shardd.migration.donor.request import MoveRangeRequest
from shardwright.sharding.document_fields import required, required_uuid


@dataclass(frozen=True, slots=True)
class MigrationAttempts:
    """One document.

    Attributes:
        id: the migration's UUID.
        request: the request that began it.
        attempts: all attempts so far; the last one is under way.
        has_entered_critical_section: whether the critical section has begun, or was about to. From then on a new
            primary does not resume the migration, but asks the config servers whether it was committed.
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
        """The document in its persisted form."""
        return {
            "_id": Binary.from_uuid(self.id),
            "nss": str(self.request.namespace),
            "request": self.request.to_document(),
            "attempts": [attempt.to_document() for attempt in self.attempts],
            "enteredCriticalSection": self.has_entered_critical_section,
        }

    def with_new(self, session_id: str, now: datetime) -> "MigrationAttempts":
        """A copy with a new attempt under way, which ends the previous one."""
        attempts = (*self._ended(now), MigrationAttempt(session_id, now))
        return replace(self, attempts=attempts, has_entered_critical_section=False)

    def with_progress(self, documents: int, size: int) -> "MigrationAttempts":
        """A copy with the number of documents that the current attempt has cloned, and their size in bytes."""
        *before, last = self.attempts
        return replace(self, attempts=(*before, replace(last, documents=documents, bytes=size)))

    def with_critical_section(self) -> "MigrationAttempts":
        """A copy that says that the critical section has begun."""
        return replace(self, has_entered_critical_section=True)

    def _ended(self, now: datetime) -> tuple[MigrationAttempt, ...]:
        if not self.attempts:
            return ()
        *before, last = self.attempts
        return (*before, replace(last, end=now))
