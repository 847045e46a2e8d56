"""The coordinator's writes to the catalog: one transaction for each change of state.

The persisted state shows which transactions have been made; repeating one of them changes nothing.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from enum import IntEnum
from typing import Any, Final
from uuid import UUID

from bson.binary import Binary
from bson.objectid import ObjectId

from shardwright.configd.catalog.catalog import Catalog
from shardwright.configd.catalog.chunks import CollectionChunks
from shardwright.configd.catalog.transactions import Transaction, check_shard_exists
from shardwright.daemon.sidecar.command_sessions import CommandSession, last_executed
from shardwright.sharding.catalog.collection_entry import CollectionEntry
from shardwright.sharding.chunk_changes import bump_minor, check_bounds_fit
from shardwright.sharding.initial_chunks import PlannedChunk, make_initial_chunks
from shardwright.sharding.resharding.operation_document import ReshardingOperation
from shardwright.sharding.resharding.states import CoordinatorState, may_follow
from shardwright.sharding.versions import ChunkVersion
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.rawbson import encode_document, raw_document

OPERATIONS: Final = "reshardingOperations"
_COLLECTIONS: Final = "collections"
_BUSY: Final = 5808201

Work = Callable[[Transaction, dict[str, Any]], Awaitable[None]]


class Ending(IntEnum):
    """Outcome of an operation; its transaction number in the session of the operation's id."""

    ABORTED = 0
    MADE = 1


class ReshardingStore:
    """The documents of resharding operations."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    async def active(self) -> ReshardingOperation | None:
        """Return the cluster's active operation, or None."""
        documents = await self._catalog.find(OPERATIONS, {"active": True})
        return ReshardingOperation.from_document(documents[0]) if documents else None

    async def find(self, operation_id: UUID) -> ReshardingOperation | None:
        """Return an operation; None if it has ended."""
        document = await self._catalog.find_by_id(OPERATIONS, Binary.from_uuid(operation_id))
        return None if document is None else ReshardingOperation.from_document(document)

    async def begin(self, operation: ReshardingOperation) -> ReshardingOperation:
        """Insert an operation, and forbid migrations; returns it with its donors, which are fixed from then on.

        Raises:
            CommandError: 5808201, the cluster has another one; NamespaceNotSharded or ConflictingOperationInProgress,
                the collection was dropped or recreated.
        """

        async def work(transaction: Transaction) -> ReshardingOperation:
            if await transaction.find_one(OPERATIONS, {"active": True}) is not None:
                raise CommandError(
                    _BUSY,
                    "Only one resharding operation is allowed to be active at a time, aborting resharding op for "
                    f"{operation.namespace}",
                )
            document = await _source(transaction, operation)
            chunks = CollectionChunks(transaction, CollectionEntry.from_document(document))
            begun = replace(
                operation, participation=replace(operation.participation, donors=tuple(await chunks.owners()))
            )
            transaction.put(OPERATIONS, [begun.to_document()])
            transaction.put(_COLLECTIONS, [{**document, "allowMigrations": False, **_fields(begun)}])
            chunks.write(bump_minor(await chunks.newest()))
            return begun

        return await self._catalog.transaction(work)

    async def write_chunks(self, operation: ReshardingOperation, plan: Sequence[PlannedChunk]) -> None:
        """Write the chunks of the new key, replacing an earlier attempt's. Nothing refers to them yet.

        Raises BSONObjectTooLarge if the bounds of a chunk are too large.
        """
        for each in plan:
            check_bounds_fit(each.min, each.max)
        version = ChunkVersion(1, 0, ObjectId(), await self._catalog.now())
        chunks = make_initial_chunks(plan, uuid=operation.id, first_version=version, new_id=ObjectId)
        await self.delete_chunks(operation)
        await self._catalog.insert("chunks", [each.to_document() for each in chunks])

    async def delete_chunks(self, operation: ReshardingOperation, *, of_source: bool = False) -> None:
        """Delete the chunks of the new key, or of the former one."""
        uuid = operation.participation.source_uuid if of_source else operation.id
        await self._catalog.delete("chunks", {"uuid": Binary.from_uuid(uuid)})

    async def prepare(self, operation: ReshardingOperation, recipients: Sequence[str]) -> ReshardingOperation:
        """Enter ``preparing-to-donate`` with the entry of the temporary collection; returns the new state."""
        told = replace(operation.participation, recipients=tuple(recipients))
        prepared = replace(operation, participation=told, state=CoordinatorState.PREPARING_TO_DONATE)
        now = await self._catalog.now()

        async def work(transaction: Transaction, source: dict[str, Any]) -> None:
            for shard in told.shards:  # a shard may have been removed since the chunks were planned
                await check_shard_exists(transaction, shard)
            entry = CollectionEntry.from_document(source)
            temporary = CollectionEntry(
                namespace=told.temporary,
                uuid=operation.id,
                epoch=ObjectId(),
                timestamp=now,
                lastmod=datetime.now(UTC).replace(tzinfo=None, microsecond=0),
                key=told.key,
                default_collation=entry.default_collation,
                allow_migrations=False,
            )
            transaction.put(_COLLECTIONS, [{**temporary.to_document(), **_fields(prepared)}])
            transaction.put(_COLLECTIONS, [{**source, **_fields(prepared)}])

        await self._change(operation, prepared, work)
        return prepared

    async def enter(
        self,
        operation: ReshardingOperation,
        state: CoordinatorState,
        **changes: Any,  # noqa: ANN401 - of all kinds
    ) -> ReshardingOperation:
        """Enter a state that does not change the meaning of the collections' entries; returns the changed operation."""
        changed = replace(operation, state=state, **changes)

        async def work(transaction: Transaction, source: dict[str, Any]) -> None:
            transaction.put(_COLLECTIONS, [{**source, **_fields(changed)}])

        await self._change(operation, changed, work)
        return changed

    async def commit(self, operation: ReshardingOperation) -> ReshardingOperation:
        """Commit the operation: give the collection its new UUID, key and zones; returns the changed operation."""
        committed = replace(operation, state=CoordinatorState.COMMITTING)
        namespace = str(operation.namespace)
        now = await self._catalog.now()

        async def work(transaction: Transaction, source: dict[str, Any]) -> None:
            transaction.put(_COLLECTIONS, [_resharded(source, committed, now)])
            transaction.delete(_COLLECTIONS, [str(operation.participation.temporary)])
            await transaction.delete_matching("tags", {"ns": namespace})
            transaction.put("tags", [_tag(namespace, zone) for zone in operation.zones or ()])

        await self._change(operation, committed, work)
        return committed

    async def ending_of(self, operation_id: UUID) -> Ending | None:
        """Return the outcome of an operation, which a repeated request must not restart; None if it has not ended."""
        number = await last_executed(self._catalog.mongod, Binary.from_uuid(operation_id))
        return None if number < 0 else Ending(number)

    async def note_ending(self, operation_id: UUID, ending: Ending) -> None:
        """Persist the outcome of an operation, for as long as mongod remembers retryable writes."""
        await CommandSession(Binary.from_uuid(operation_id), ending).record(self._catalog.mongod)

    async def finish(self, operation: ReshardingOperation) -> None:
        """Remove the operation, and allow migrations again."""

        async def work(transaction: Transaction) -> None:
            document = await transaction.find_one(OPERATIONS, {"_id": Binary.from_uuid(operation.id)})
            if document is None:
                return
            transaction.delete(OPERATIONS, [document["_id"]])
            transaction.delete(_COLLECTIONS, [str(operation.participation.temporary)])
            source = await transaction.find_one(_COLLECTIONS, {"_id": str(operation.namespace)})
            if source is None:
                return
            kept = {
                name: value for name, value in source.items() if name not in ("allowMigrations", "reshardingFields")
            }
            transaction.put(_COLLECTIONS, [kept])
            chunks = CollectionChunks(transaction, CollectionEntry.from_document(kept))
            chunks.write(bump_minor(await chunks.newest()))

        await self._catalog.transaction(work)

    async def _change(self, before: ReshardingOperation, after: ReshardingOperation, work: Work) -> None:
        async def change(transaction: Transaction) -> None:
            document = await transaction.find_one(OPERATIONS, {"_id": Binary.from_uuid(before.id)})
            if document is None:
                raise CommandError(ErrorCode.NoSuchReshardCollection, f"No resharding operation {before.id} is active")
            if document["state"] == after.state:
                return
            if not may_follow(CoordinatorState(document["state"]), after.state):
                raise CommandError(
                    ErrorCode.ConflictingOperationInProgress,
                    f"The resharding operation {before.id} is {document['state']}, and cannot be {after.state}",
                )
            transaction.put(OPERATIONS, [after.to_document()])
            source = await transaction.find_one(_COLLECTIONS, {"_id": str(before.namespace)})
            if source is not None:
                await work(transaction, source)

        await self._catalog.transaction(change)


async def _source(transaction: Transaction, operation: ReshardingOperation) -> dict[str, Any]:
    namespace = str(operation.namespace)
    document = await transaction.find_one(_COLLECTIONS, {"_id": namespace})
    if document is None:
        raise CommandError(ErrorCode.NamespaceNotSharded, f"Collection {namespace} is not sharded.")
    if CollectionEntry.from_document(document).uuid != operation.participation.source_uuid:
        raise CommandError(
            ErrorCode.ConflictingOperationInProgress, f"The collection {namespace} was recreated concurrently"
        )
    return document


def _fields(operation: ReshardingOperation) -> dict[str, Any]:
    """Build ``reshardingFields`` of an entry, which show shards and tools that the collection is being resharded."""
    told = operation.participation
    fields: dict[str, Any] = {"reshardingUUID": Binary.from_uuid(told.id), "state": str(operation.state)}
    if told.recipients:
        fields["donorFields"] = {
            "tempNs": str(told.temporary),
            "reshardingKey": raw_document(told.key.document),
            "recipientShardIds": list(told.recipients),
        }
    return {"reshardingFields": fields}


def _resharded(source: Mapping[str, Any], operation: ReshardingOperation, now: object) -> dict[str, Any]:
    """Build the collection's entry after the commit. A defragmentation of its chunks restarts."""
    return {
        **{name: value for name, value in source.items() if name != "defragmentationPhase"},
        "lastmodEpoch": ObjectId(),
        "lastmod": datetime.now(UTC).replace(tzinfo=None, microsecond=0),
        "timestamp": now,
        "uuid": Binary.from_uuid(operation.id),
        "key": raw_document(operation.participation.key.document),
        "unique": False,
        **_fields(operation),
    }


def _tag(namespace: str, zone: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "_id": ObjectId(),
        "ns": namespace,
        "tag": zone["zone"],
        "min": raw_document(encode_document(zone["min"])),
        "max": raw_document(encode_document(zone["max"])),
    }
