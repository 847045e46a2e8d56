"""The donor's persisted state: every write waits for a majority, so that the next primary finds it."""

from uuid import UUID

from bson.binary import Binary

from shardwright.daemon.sidecar.mongod import LocalMongod
from shardwright.shardd.local_mongod.config_collection import ConfigCollection
from shardwright.shardd.migration.documents import (
    MIGRATION_ATTEMPTS,
    MIGRATION_COORDINATORS,
    MigrationCoordinatorDocument,
)
from shardwright.shardd.migration.donor.attempts import MigrationAttempts


class DonorStore:
    """``config.migrationCoordinators`` and ``config.migrationAttempts`` of one shard.

    All methods raise CommandError if mongod refuses or is not primary, and BackendError if it does not answer.
    """

    def __init__(self, mongod: LocalMongod) -> None:
        self._coordinators = ConfigCollection(mongod, MIGRATION_COORDINATORS)
        self._attempts = ConfigCollection(mongod, MIGRATION_ATTEMPTS)

    async def load(self) -> list[tuple[MigrationCoordinatorDocument, MigrationAttempts | None]]:
        """The migrations that are not finished, each with its attempts."""
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
