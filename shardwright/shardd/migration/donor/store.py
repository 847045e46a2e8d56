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

    All of its methods raise a CommandError when mongod refuses or is not primary, and a BackendError when it is gone.
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
        """Write a coordinator as it is now."""
        await self._coordinators.save(document.to_document())

    async def save_attempts(self, document: MigrationAttempts) -> None:
        """Write the attempts at a migration as they are now."""
        await self._attempts.save(document.to_document())

    async def forget(self, migration_id: UUID) -> None:
        """A migration is finished. The coordinator goes last: as long as it is there, all of this is repeated."""
        await self._attempts.remove(Binary.from_uuid(migration_id))
        await self._coordinators.remove(Binary.from_uuid(migration_id))
