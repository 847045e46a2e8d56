"""``collMod`` on all shards that have a collection (``_shardsvrCollMod``), also of time-series collections.

A change is checked on all shards before it is made on any. Migrations are blocked until the end, because a recipient
might copy the collection without it. While the granularity of a time-series collection changes, all owners block
operations (`GranularityChange`). Requests on measurements are translated into requests on buckets, also for other DDL.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Set
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, ClassVar, Final
from uuid import UUID

from bson.binary import Binary

from shardwright.shardd.context.shard_context import (
    ShardContext,
    all_shard_ids,
    by_hosts,
    send_to_shard,
    send_to_shards,
)
from shardwright.shardd.ddl.coordinator import Coordinator, allow_migrations, check_expected_uuid, migrations_blocked
from shardwright.shardd.ddl.participants import READS_AND_WRITES, UNBLOCK
from shardwright.shardd.local_mongod import local_collections
from shardwright.sharding.bson_text import document_text
from shardwright.sharding.catalog.reads import read_routing
from shardwright.sharding.namespace import Namespace
from shardwright.sharding.routing_table import RoutingTable
from shardwright.sharding.shard_key import ShardKeyPattern
from shardwright.sharding.time_series import GRANULARITIES, TimeSeriesFields, is_coarser
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError, unknown_field
from shardwright.wire.rawbson import encode_document

_NOT_FOR_OTHERS: Final = 6201808
"""MongoDB's number for an error without a name."""

BLOCK_SHARDS: Final = "BlockShards"
UPDATE_CONFIG: Final = "UpdateConfig"
UPDATE_SHARDS: Final = "UpdateShards"

SENT_HERE: Final = "sentHere"
"""Additional argument of a change of the granularity once this shard may have made the request's other changes."""

_REFUSED_FOR_NOW: Final = frozenset(
    {ErrorCode.BackgroundOperationInProgressForNamespace, ErrorCode.LockBusy, ErrorCode.LockTimeout}
)
"""Transient refusals, such as from a shard that is building an index.

A shard that made the change in an earlier attempt may refuse the repetition with them.
"""

Step = Callable[[RoutingTable], Awaitable[None]]
"""Acts on the shards of a routing table."""


class MeaningChangedError(CommandError):
    """The target of a change was replaced before its locks were held. Nothing has been changed, and it is repeated."""

    def __init__(self, namespace: Namespace) -> None:
        super().__init__(
            ErrorCode.ConflictingOperationInProgress, f"another operation has changed the collection {namespace}"
        )


async def sharded_time_series(context: ShardContext, namespace: Namespace) -> TimeSeriesFields | None:
    """Return the bucketing of a sharded time-series collection; None for any other collection."""
    if namespace.is_time_series_buckets:
        return None
    table = await (await context.catalog()).read(read_routing(str(namespace.buckets)))
    return None if table is None else table.collection.time_series


def change_of_buckets(fields: TimeSeriesFields, namespace: Namespace, change: Mapping[str, Any]) -> dict[str, Any]:
    """Convert the fields of a ``collMod`` of measurements to those for their buckets.

    Args:
        fields: the bucketing of the measurements.
        change: the fields of the request that describe the change.

    Raises:
        CommandError: IndexNotFound, measurements have no index with such a key.
    """
    changed = dict(change)
    index = change.get("index")
    if isinstance(index, Mapping) and isinstance(key := index.get("keyPattern"), Mapping):
        try:
            changed["index"] = {**index, "keyPattern": fields.buckets_index_key(key)}
        except CommandError as error:
            command = document_text(encode_document({"collMod": namespace.collection, **change}))
            raise CommandError(
                ErrorCode.IndexNotFound, f"{error.code_name}: {error.message} Command request: {command}"
            ) from error
    return changed


def granularity_of(change: Mapping[str, Any]) -> str | None:
    """Return the granularity that a ``collMod`` sets; None if it sets none.

    Raises:
        CommandError: BadValue, it is not one; 40415, the command changes another option of time-series collections.
    """
    options = change.get("timeseries")
    if not isinstance(options, Mapping):
        return None
    for name in options:
        if name != "granularity":
            raise unknown_field(f"_shardsvrCollMod.timeseries.{name}")
    granularity: object = options.get("granularity")
    if granularity is not None and granularity not in GRANULARITIES:
        raise CommandError(
            ErrorCode.BadValue,
            f"Enumeration value '{granularity}' for field '_shardsvrCollMod.timeseries.granularity' is not a valid "
            "value.",
        )
    return None if granularity is None else str(granularity)


async def check_is_time_series(context: ShardContext, namespace: Namespace) -> None:
    """Refuse time-series options for any other collection, with 6201808."""
    if namespace.is_time_series_buckets or await local_collections.describe(context.mongod, namespace.buckets) is None:
        raise CommandError(_NOT_FOR_OTHERS, "Cannot use time-series options for a non-timeseries collection")


def _check_not_finer(granularity: str, fields: TimeSeriesFields) -> None:
    """Check that a granularity is the current one or coarser, else raise InvalidOptions."""
    if is_coarser(fields.granularity, granularity):
        raise CommandError(
            ErrorCode.InvalidOptions,
            "Invalid transition for timeseries.granularity. Can only transition from 'seconds' to 'minutes' or "
            "'minutes' to 'hours'.",
        )


class GranularityChange:
    """The change of a time-series collection's granularity; the coordinator's phase is its progress.

    Args:
        coordinator: it has just entered a phase, and sent no command in it.
    """

    def __init__(self, coordinator: Coordinator, uuid: UUID, granularity: str) -> None:
        self._coordinator = coordinator
        self._uuid = uuid
        self._granularity = granularity

    async def prepare(self, check: Step, begin: Step) -> None:
        """Block migrations and operations, and commit; afterwards the shards have to change.

        Args:
            check: checks whether the owners of chunks accept the other changes of the request.
            begin: makes those changes on the first shard, while operations wait.

        Raises:
            CommandError: a shard refused, or could not be reached. Unless the coordinator must finish, nothing has
                changed, and operations continue.
        """
        coordinator = self._coordinator
        if coordinator.phase == BLOCK_SHARDS:
            coordinator.must_finish = SENT_HERE in coordinator.arguments
            try:
                with coordinator.point_of_no_return():
                    await self._block(check)
                await self._begin(begin)
            except CommandError:
                if not coordinator.must_finish:
                    await self._give_up()
                raise
            await coordinator.enter_phase(UPDATE_CONFIG)
        coordinator.must_finish = True
        if coordinator.phase == UPDATE_CONFIG:
            change = {
                "_configsvrCollMod": coordinator.namespace.collection,
                "collModRequest": {"timeseries": {"granularity": self._granularity}},
                **coordinator.session,
            }
            await (await coordinator.context.catalog()).commit(change, coordinator.namespace.db)
            await coordinator.enter_phase(UPDATE_SHARDS)

    async def finish(self) -> None:
        """Allow migrations again, after all shards have changed."""
        await self._coordinator.enter_phase(UPDATE_SHARDS)  # for another command to the config servers
        await self._allow_migrations(is_allowed=True)

    async def present_table(self) -> RoutingTable:
        """Return the routing table, whose owners do not change from `prepare` to `finish`."""
        table = await self._coordinator.read_routing()
        assert table is not None  # the coordinator holds the lock of the collection
        return table

    async def _block(self, check: Step) -> None:
        await self._allow_migrations(is_allowed=False)
        table = await self.present_table()
        if SENT_HERE not in self._coordinator.arguments:  # otherwise an earlier attempt has passed the checks
            await self._check_shards(table)
            await check(table)
        await self._send(READS_AND_WRITES, table.shards)

    async def _begin(self, begin: Step) -> None:
        coordinator = self._coordinator
        retried = _REFUSED_FOR_NOW if SENT_HERE in coordinator.arguments else ()
        await coordinator.enter_phase(BLOCK_SHARDS, **{SENT_HERE: True})
        coordinator.must_finish = False  # only this shard changes
        with coordinator.point_of_no_return(retried=retried):
            await begin(await self.present_table())

    async def _check_shards(self, table: RoutingTable) -> None:
        """Check that no shard has a coarser granularity than the new one."""
        coordinator = self._coordinator
        listing = {"listCollections": 1, "filter": {"name": coordinator.namespace.collection}}
        shard_ids = {coordinator.context.require_identity().shard_name, *table.shards}
        replies = await send_to_shards(coordinator.context, shard_ids, coordinator.namespace.db, listing)
        for shard_id in sorted(replies):
            for entry in replies[shard_id]["cursor"]["firstBatch"]:
                _check_not_finer(self._granularity, TimeSeriesFields.from_document(entry["options"]["timeseries"]))

    async def _give_up(self) -> None:
        coordinator = self._coordinator
        coordinator.must_finish = True
        coordinator.arguments.pop(SENT_HERE, None)
        await coordinator.enter_phase(BLOCK_SHARDS)
        await self._send(UNBLOCK, await all_shard_ids(coordinator.context))
        await self._allow_migrations(is_allowed=True)
        coordinator.must_finish = False

    async def _send(self, kind: str, shard_ids: Collection[str]) -> None:
        coordinator = self._coordinator
        block = {
            "_shardsvrParticipantBlock": coordinator.namespace.collection,
            "blockType": kind,
            **coordinator.session,
        }
        await send_to_shards(coordinator.context, shard_ids, coordinator.namespace.db, block)

    async def _allow_migrations(self, *, is_allowed: bool) -> None:
        coordinator = self._coordinator
        await allow_migrations(
            coordinator.context, coordinator.namespace, self._uuid, coordinator.session, allow=is_allowed
        )


CHANGED_HERE: Final = "changedHere"
"""Additional argument once this shard has made the change, so that other shards may have made it."""

INFO: Final = "info"
"""Additional argument of a persisted change of the granularity: the former state of the collection."""

_NOT_THERE: Final = frozenset({ErrorCode.NamespaceNotFound, ErrorCode.CollectionUUIDMismatch})
_REFUSED_FOR_INDEX: Final = frozenset(
    {ErrorCode.IndexNotFound, ErrorCode.InvalidOptions, ErrorCode.CannotConvertIndexToUnique}
)
_REFUSED_FOR_GOOD: Final = _REFUSED_FOR_INDEX | _NOT_THERE
"""Refusals that another attempt meets again, such as after a drop of the index.

They end the change even if other shards have changed. Otherwise it would keep its locks forever.
"""


class ModifyCollection(Coordinator):
    """Runs ``collMod``. The argument ``collModRequest`` contains the fields of the user's command."""

    operation_type: ClassVar[str] = "collMod_V2"

    async def run(self) -> dict[str, Any]:
        """Run it here for an unsharded collection or a view, else on all shards that have the collection.

        IndexNotFound, CannotConvertIndexToUnique and others mean that a shard refused before anything was changed.
        """
        if self.phase is None:
            await check_expected_uuid(self.context.mongod, self.namespace, self._request.get("collectionUUID"))
        table = await self.read_routing()
        if table is None:
            retried = _REFUSED_FOR_NOW if self.must_finish else ()
            self.must_finish = False  # only this shard changes
            with self.point_of_no_return(retried=retried):
                results = await self._send({self._me}, self._participant_command(perform_view_change=True))
            # As in MongoDB, the only shard's reply is also at the top level.
            changed = {name: value for name, value in results[self._me].items() if name != "ok"}
            return {**changed, "raw": await by_hosts(self.context, {self._me: changed})}
        granularity = self._new_granularity(table)
        if granularity is None:
            results = await self._modify_sharded(table)
        else:
            results = await self._modify_buckets(table, granularity)
        return {"raw": await by_hosts(self.context, results)}

    @asynccontextmanager
    async def entered(self) -> AsyncIterator[None]:
        """Exclude index creations if the change concerns an index, because an unfinished one may be undone.

        Raises BackgroundOperationInProgressForNamespace if one is being created.
        """
        async with AsyncExitStack() as stack:
            if "index" in self._request:
                namespaces = (str(self.namespace),)
                await stack.enter_async_context(
                    self.context.index_creations.kept_out(namespaces, must_enter=self.must_finish)
                )
            yield

    async def _modify_sharded(self, table: RoutingTable) -> dict[str, Any]:
        await self.enter_phase(self.phase or BLOCK_SHARDS)
        # In this phase, this shard may have made the change in an earlier attempt or term.
        self.must_finish = self.phase == UPDATE_SHARDS
        retried = _REFUSED_FOR_NOW if self.must_finish else ()
        async with migrations_blocked(self, table.collection.uuid):
            # This shard is first. Until it has accepted the change, its refusal means that no shard has changed.
            self.must_finish = CHANGED_HERE in self.arguments
            with self.point_of_no_return(retried=retried, final=_REFUSED_FOR_GOOD):
                table = await self.read_routing() or table  # from here on the owners do not change
                if self.phase == BLOCK_SHARDS:
                    await self._check_owners(table)
                    await self.enter_phase(UPDATE_SHARDS)
                results = await self._modify_here(table)
            await self.enter_phase(UPDATE_SHARDS, **{CHANGED_HERE: True})
            with self.point_of_no_return(final=_REFUSED_FOR_GOOD):
                results |= await self._modify_elsewhere(table)
        return results

    async def _modify_buckets(self, table: RoutingTable, granularity: str) -> dict[str, Any]:
        """Change the granularity and all other fields on all shards while operations wait."""
        before = self.arguments.get(INFO) or {"timeSeriesOptions": _fields(table).to_document(), "isSharded": True}
        await self.enter_phase(self.phase or BLOCK_SHARDS, info=before)
        change = GranularityChange(self, table.collection.uuid, granularity)
        await change.prepare(self._check_owners, self._modify_first)
        table = await change.present_table()
        results = await self._modify_here(table)
        results |= await self._modify_elsewhere(table)
        await change.finish()
        return results

    async def _modify_first(self, table: RoutingTable) -> None:
        """Change everything but the granularity on this shard."""
        rest = {name: value for name, value in self._request.items() if name != "timeseries"}
        if rest:
            command = {**self._change_of(table), "collModRequest": rest, "needsUnblock": False}
            await self._modify_here(table, command)

    def _new_granularity(self, table: RoutingTable) -> str | None:
        """Return the granularity to change to; None if it does not change."""
        granularity = granularity_of(self._request)
        if granularity is None or self._request.get("dryRun"):
            return None
        if INFO in self.arguments:  # the catalog may have changed already
            return granularity
        _check_not_finer(granularity, _fields(table))
        return None if granularity == _fields(table).granularity else granularity

    async def _check_owners(self, table: RoutingTable) -> None:
        """Check that no shard that owns chunks would refuse the change, else raise the first refusal."""
        index = self._request.get("index")
        if not isinstance(index, Mapping) or self._request.get("dryRun"):
            return  # the mongods of all shards agree about everything else
        for shard_id in sorted(table.shards):
            await self._check_index(shard_id, index, table.key_pattern)
        if index.get("unique"):
            await self._send(set(table.shards), self._participant_command(index=index, dryRun=True))

    async def _check_index(self, shard_id: str, index: Mapping[str, Any], pattern: ShardKeyPattern) -> None:
        listing = {"listIndexes": self.namespace.collection}
        reply = await send_to_shard(self.context, shard_id, self.namespace.db, listing)
        name, key = index.get("name"), index.get("keyPattern", {})
        found = [each for each in reply["cursor"]["firstBatch"] if each["name"] == name or each["key"] == key]
        if not found and (name or key):
            wanted = name or document_text(encode_document(key))
            raise CommandError(ErrorCode.IndexNotFound, f"cannot find index {wanted} for ns {self.namespace}")
        for each in found:
            if (
                index.get("prepareUnique")
                and each["name"] != "_id_"
                and not pattern.is_unique_index_compatible(each["key"])
            ):
                raise CommandError(
                    ErrorCode.InvalidOptions,
                    f"cannot set 'prepareUnique' for index {document_text(encode_document(each['key']))} with shard "
                    f"key pattern {pattern}",
                )

    async def _modify_here(self, table: RoutingTable, command: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Change this shard first, because its mongod refuses anything that all of them would refuse."""
        command = {**(command or self._change_of(table)), "performViewChange": True}
        if self._me in table.shards:
            return await self._send({self._me}, command)
        return await self._modify_bystander(command, self._me)

    async def _modify_elsewhere(self, table: RoutingTable) -> dict[str, Any]:
        """Continue with the owners, then with the other shards."""
        command = self._change_of(table)
        owners = set(table.shards)
        results = await self._send(owners - {self._me}, command)
        for shard_id in sorted(set(await all_shard_ids(self.context)) - owners - {self._me}):
            results |= await self._modify_bystander(command, shard_id)
        return results

    async def _modify_bystander(self, command: Mapping[str, Any], shard_id: str) -> dict[str, Any]:
        """Modify the collection, if it exists, on a shard without chunks.

        Indexes are not maintained there: if the change is refused because of an index, the rest is changed. Indexes are
        corrected when the shard receives a chunk.
        """
        request = command["collModRequest"]
        try:
            return await self._send({shard_id}, command)
        except CommandError as error:
            if error.code in _REFUSED_FOR_INDEX and "index" in request:
                rest = {name: value for name, value in request.items() if name != "index"}
                return await self._modify_bystander({**command, "collModRequest": rest}, shard_id)
            if error.code not in _NOT_THERE:
                raise
        return {}

    async def _send(self, shard_ids: Set[str], command: Mapping[str, Any]) -> dict[str, Any]:
        replies = await send_to_shards(self.context, shard_ids, self.namespace.db, command)
        return {shard_id: reply["result"] for shard_id, reply in replies.items()}

    def _change_of(self, table: RoutingTable) -> dict[str, Any]:
        return {**self._participant_command(uuid=Binary.from_uuid(table.collection.uuid)), **self.session}

    def _participant_command(
        self, *, perform_view_change: bool = False, uuid: Binary | None = None, **only: object
    ) -> dict[str, Any]:
        """Return ``_shardsvrCollModParticipant`` with the whole request, or with ``only`` some fields."""
        request = only or ({} if uuid is None else {"collectionUUID": uuid}) | self._request
        return {
            "_shardsvrCollModParticipant": self.namespace.collection,
            "collModRequest": request,
            "needsUnblock": INFO in self.arguments,
            "performViewChange": perform_view_change,
        }

    @property
    def _request(self) -> dict[str, Any]:
        request: dict[str, Any] = self.arguments["collModRequest"]
        return request

    @property
    def _me(self) -> str:
        return self.context.require_identity().shard_name


def _fields(table: RoutingTable) -> TimeSeriesFields:
    assert table.collection.time_series is not None  # checked with the request
    return table.collection.time_series
