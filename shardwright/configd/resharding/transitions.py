"""State transitions of a resharding operation: their transactions on the catalog, and their commands to shards.

`ReshardingStore` writes each change of state in one transaction. The persisted state shows which transactions have been
made; repeating one of them changes nothing. `Participants` sends the commands to donors and recipients. Each can be
repeated, and is repeated for as long as a shard cannot be reached. The coordinator limits the wait by cancelling it.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from enum import IntEnum
from typing import Any, Final, TypeVar
from uuid import UUID

import trio
from bson.binary import Binary
from bson.objectid import ObjectId

from shardwright.configd.catalog.catalog import Catalog
from shardwright.configd.catalog.chunks import CollectionChunks
from shardwright.configd.catalog.transactions import Transaction, check_shard_exists
from shardwright.configd.term.term import Term
from shardwright.daemon.backoff import Backoff
from shardwright.daemon.sidecar.command_sessions import CommandSession, last_executed
from shardwright.sharding.catalog.documents import CollectionEntry
from shardwright.sharding.chunk_changes import bump_minor, check_bounds_fit
from shardwright.sharding.initial_chunks import PlannedChunk, make_initial_chunks
from shardwright.sharding.resharding_operation import ReshardingOperation
from shardwright.sharding.resharding_participation import CoordinatorState, Participation, RecipientState, may_follow
from shardwright.sharding.versions import ChunkVersion
from shardwright.wire.error_codes import Category, ErrorCode, has_category
from shardwright.wire.errors import BackendError, CommandError
from shardwright.wire.logger import get_logger
from shardwright.wire.rawbson import encode_document, raw_document

logger = get_logger("configd.resharding")

OPERATIONS: Final = "reshardingOperations"

_COLLECTIONS: Final = "collections"

_BUSY: Final = 5808201

Work = Callable[[Transaction, dict[str, Any]], Awaitable[None]]

Result = TypeVar("Result")

_POLL_MILLIS: Final = 1_000
"""Wait of a recipient for a state before it reports its present one."""

_DONOR: Final = "Donor"

_RECIPIENT: Final = "Recipient"

_MAJORITY: Final = {"w": "majority", "wtimeout": 60_000}


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
        await self._catalog.replace_chunks(Binary.from_uuid(operation.id), [each.to_document() for each in chunks])

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


class Participants:
    """The participants of one operation. Commands raise the CommandError with which one of them refused or failed."""

    def __init__(self, term: Term, participation: Participation) -> None:
        self._term = term
        self._participation = participation

    async def start_donors(self) -> dict[str, dict[str, Any]]:
        """Prepare the donors; returns their replies, with the size of each one's data."""
        donate = {"_shardsvrReshardingDonate": self._told}
        return await self._ask(self._participation.donors, donate, role=_DONOR)

    async def block_writes(self) -> dict[str, dict[str, Any]]:
        """Block writes on the donors; returns their replies, with the time of the last write on each."""
        donate = {"_shardsvrReshardingDonate": self._told, "blockWrites": True}
        return await self._ask(self._participation.donors, donate, role=_DONOR)

    async def receive_until(self, state: RecipientState, **more: object) -> None:
        """Return when all recipients have reached a state; starts recipients that do not have the operation yet."""
        receive = {
            "_shardsvrReshardingReceive": self._told,
            "awaitState": str(state),
            "waitMillis": _POLL_MILLIS,
            **more,
        }

        async def wait(shard_id: str) -> None:
            while not (await self._send(shard_id, "admin", receive, role=_RECIPIENT))["isReached"]:
                logger.debug("A recipient is on its way", shard=shard_id, wanted=str(state))

        await together(self._participation.recipients, wait)

    async def remaining_millis(self) -> list[int] | None:
        """Return each recipient's estimate of its remaining time; None if one has no estimate."""
        ask = {"_shardsvrReshardingOperationTime": str(self._participation.namespace)}
        replies = await self._ask(self._participation.recipients, ask, role=_RECIPIENT)
        times = [reply["remainingMillis"] for reply in replies.values() if "remainingMillis" in reply]
        return times if len(times) == len(replies) else None

    async def hold(self) -> None:
        """Block reads and writes of the collection on all participants, until commit or abort."""
        await self._ask(self._participation.shards, {"_shardsvrReshardingHold": self._told})

    async def commit(self) -> None:
        """Replace the participants' parts of the collection."""
        namespace = self._participation.namespace
        commit = {"_shardsvrCommitReshardCollection": str(namespace), "reshardingUUID": self._id, **self._operation}
        await self._ask(self._participation.shards, commit)

    async def drop_elsewhere(self) -> None:
        """Drop the former collection on other shards, which own none of it but may still have it."""
        namespace = self._participation.namespace
        drop = {"_shardsvrDropCollectionIfUUIDNotMatching": namespace.collection, "expectedCollectionUUID": self._id}
        shards = await self._term.catalog.shards()
        others = [each.id for each in shards if each.id not in self._participation.shards]
        await self._ask(others, {**drop, "writeConcern": _MAJORITY}, db=namespace.db)

    async def abort(self, *, user_canceled: bool) -> None:
        """Remove everything of the operation from all participants that are still shards."""
        known = {each.id for each in await self._term.catalog.shards()}
        abort = {"_shardsvrAbortReshardCollection": self._id, "userCanceled": user_canceled, **self._operation}
        await self._ask([each for each in self._participation.shards if each in known], abort)

    async def refresh(self, shard_ids: Iterable[str]) -> None:
        """Refresh the collection on shards, which ends migrations that are forbidden now."""
        flush = {
            "_flushRoutingTableCacheUpdatesWithWriteConcern": str(self._participation.namespace),
            "syncFromConfig": True,
            "writeConcern": _MAJORITY,
        }
        await self._ask(shard_ids, flush)

    @property
    def _id(self) -> Binary:
        return Binary.from_uuid(self._participation.id)

    @property
    def _told(self) -> dict[str, Any]:
        return self._participation.to_document()

    @property
    def _operation(self) -> dict[str, Any]:
        return {"operation": self._told}

    async def _ask(
        self, shard_ids: Iterable[str], command: Mapping[str, Any], *, db: str = "admin", role: str | None = None
    ) -> dict[str, dict[str, Any]]:
        replies: dict[str, dict[str, Any]] = {}

        async def ask(shard_id: str) -> None:
            replies[shard_id] = await self._send(shard_id, db, command, role=role)

        await together(shard_ids, ask)
        return replies

    async def _send(
        self, shard_id: str, db: str, command: Mapping[str, Any], *, role: str | None = None
    ) -> dict[str, Any]:
        """Return a shard's reply, repeating the command while the shard cannot be reached.

        If ``role`` is given, `_DONOR` or `_RECIPIENT`, an error of the shard ends the operation.
        """
        backoff = Backoff(first_seconds=0.1, seconds_max=2.0)
        while True:
            shard = await self._term.catalog.shard(shard_id)
            try:
                return await self._term.shards.command(shard, db, command)
            except CommandError as error:
                if not _is_transient(error):
                    if role is None:
                        raise
                    context = f"{role} shard {shard_id} reached an unrecoverable error"
                    message = f"{context} :: caused by :: {error.message}"
                    raise CommandError(error.code, message, labels=error.labels, extra=error.extra) from error
                logger.warning(
                    "Could not reach a participant", shard=shard_id, command=next(iter(command)), error=str(error)
                )
            await backoff.pause()


def _is_transient(error: CommandError) -> bool:
    return has_category(error.code, Category.RETRYABLE) or error.code in (
        ErrorCode.FailedToSatisfyReadPreference,
        ErrorCode.LockFailed,
        ErrorCode.WriteConcernFailed,
    )


async def together(shard_ids: Iterable[str], work: Callable[[str], Awaitable[None]]) -> None:
    """Run something for several shards concurrently; the first CommandError or BackendError cancels the others."""
    failures: list[CommandError | BackendError] = []

    async def run(shard_id: str) -> None:
        try:
            await work(shard_id)
        except (CommandError, BackendError) as error:
            failures.append(error)
            nursery.cancel_scope.cancel()

    async with trio.open_nursery() as nursery:
        for shard_id in shard_ids:
            nursery.start_soon(run, shard_id)
    for failure in failures:
        raise failure
