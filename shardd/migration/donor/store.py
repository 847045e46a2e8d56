"""The donor's persisted state: every write waits for a majority, so that the next primary finds it."""

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from bson.binary import Binary

from daemon.sidecar.mongod import LocalMongod
from shardd.catalog import MAJORITY
from shardd.migration.documents import MIGRATION_ATTEMPTS, MIGRATION_COORDINATORS, MigrationCoordinatorDocument
from shardd.migration.donor.attempts import MigrationAttempts


class DonorStore:
    """``config.migrationCoordinators`` and ``config.migrationAttempts`` of one shard.

    All of its methods raise a CommandError when mongod refuses or is not primary, and a BackendError when it is gone.
    """

    def __init__(self, mongod: LocalMongod) -> None:
        self._mongod = mongod

    async def load(self) -> list[tuple[MigrationCoordinatorDocument, MigrationAttempts | None]]:
        """The migrations that are not finished, each with its attempts."""
        attempts: dict[UUID, MigrationAttempts] = {}
        for document in await self._all(MIGRATION_ATTEMPTS):
            each = MigrationAttempts.from_document(document)
            attempts[each.id] = each
        coordinators = map(MigrationCoordinatorDocument.from_document, await self._all(MIGRATION_COORDINATORS))
        return [(coordinator, attempts.get(coordinator.id)) for coordinator in coordinators]

    async def save_coordinator(self, document: MigrationCoordinatorDocument) -> None:
        """Write a coordinator as it is now."""
        await self._save(MIGRATION_COORDINATORS, document.to_document())

    async def save_attempts(self, document: MigrationAttempts) -> None:
        """Write the attempts at a migration as they are now."""
        await self._save(MIGRATION_ATTEMPTS, document.to_document())

    async def forget(self, migration_id: UUID) -> None:
        """A migration is finished. The coordinator goes last: as long as it is there, all of this is repeated."""
        for collection in (MIGRATION_ATTEMPTS, MIGRATION_COORDINATORS):
            delete = {"q": {"_id": Binary.from_uuid(migration_id)}, "limit": 1}
            await self._mongod.write("config", {"delete": collection, "deletes": [delete], "writeConcern": MAJORITY})

    async def _save(self, collection: str, document: Mapping[str, Any]) -> None:
        update = {"q": {"_id": document["_id"]}, "u": document, "upsert": True}
        await self._mongod.write("config", {"update": collection, "updates": [update], "writeConcern": MAJORITY})

    async def _all(self, collection: str) -> list[dict[str, Any]]:
        reply = await self._mongod.command("config", {"find": collection, "batchSize": 1000, "singleBatch": True})
        documents: list[dict[str, Any]] = reply["cursor"]["firstBatch"]
        return documents
