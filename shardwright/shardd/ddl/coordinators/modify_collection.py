"""``collMod`` on all shards that have a collection (``_shardsvrCollMod``).

A change to several shards is checked on all of them before it is made on any. Meanwhile migrations are forbidden, since
a recipient might copy the collection as it was before.
"""

from collections.abc import AsyncIterator, Mapping, Set
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, ClassVar, Final

from bson.binary import Binary

from shardwright.shardd.context.other_shards import all_shard_ids, by_hosts, send_to_shard, send_to_shards
from shardwright.shardd.ddl.coordinators.coordinator import Coordinator
from shardwright.shardd.ddl.coordinators.frozen_migrations import migrations_frozen
from shardwright.shardd.ddl.coordinators.granularity_change import BLOCK_SHARDS, UPDATE_SHARDS, GranularityChange
from shardwright.shardd.ddl.expected_uuid import check_expected_uuid
from shardwright.shardd.ddl.time_series import check_not_finer, granularity_of
from shardwright.sharding.bson_text import document_text
from shardwright.sharding.routing_table import RoutingTable
from shardwright.sharding.shard_key import ShardKeyPattern
from shardwright.sharding.time_series import TimeSeriesFields
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.rawbson import encode_document

INFO: Final = "info"
"""The argument that a change of the granularity, once begun, has in addition: what the collection was before."""

_NOT_THERE: Final = frozenset({ErrorCode.NamespaceNotFound, ErrorCode.CollectionUUIDMismatch})
_REFUSED_FOR_INDEX: Final = frozenset(
    {ErrorCode.IndexNotFound, ErrorCode.InvalidOptions, ErrorCode.CannotConvertIndexToUnique}
)
_REFUSED_FOR_NOW: Final = frozenset(
    {ErrorCode.BackgroundOperationInProgressForNamespace, ErrorCode.LockBusy, ErrorCode.LockTimeout}
)
"""Refusals that pass, as that of a shard where an index is being built: once another shard has changed, they are
retried, as a change to only some shards would otherwise remain."""


class ModifyCollection(Coordinator):
    """The argument ``collModRequest`` contains the fields of the user's ``collMod``."""

    operation_type: ClassVar[str] = "collMod_V2"

    async def run(self) -> dict[str, Any]:
        """Run it here for an unsharded collection or a view, else on all shards that have the collection.

        Raises:
            CommandError: an error of mongod; IndexNotFound, CannotConvertIndexToUnique and others, a shard refused
                before anything was changed.
        """
        if self.phase is None:
            await check_expected_uuid(self.context.mongod, self.namespace, self._request.get("collectionUUID"))
        table = await self.read_routing()
        if table is None:
            with self.point_of_no_return():
                results = await self._send({self._me}, self._participant_command(perform_view_change=True))
            # As in MongoDB, what the only shard says is at the top, too.
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
        """The index that it changes is not one that is still being created, and may be undone.

        Raises:
            CommandError: BackgroundOperationInProgressForNamespace, one is being created.
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
        async with migrations_frozen(self, table.collection.uuid):
            with self.point_of_no_return():
                table = await self.read_routing() or table  # from here on the owners do not change
                if self.phase == BLOCK_SHARDS:
                    await self._check_owners(table)
                    await self.enter_phase(UPDATE_SHARDS)
                results = await self._modify_here(table)
            with self.point_of_no_return(retried=_REFUSED_FOR_NOW):
                results |= await self._modify_elsewhere(table)
        return results

    async def _modify_buckets(self, table: RoutingTable, granularity: str) -> dict[str, Any]:
        """Change the granularity, and whatever else is asked for, on all shards while operations wait."""
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
        """The granularity to change to; None if it stays as it is."""
        granularity = granularity_of(self._request)
        if granularity is None or self._request.get("dryRun"):
            return None
        if INFO in self.arguments:  # the catalog may have changed already
            return granularity
        check_not_finer(granularity, _fields(table))
        return None if granularity == _fields(table).granularity else granularity

    async def _check_owners(self, table: RoutingTable) -> None:
        """Check that no shard that owns chunks would refuse the change.

        Raises:
            CommandError: one would, with this error.
        """
        index = self._request.get("index")
        if not isinstance(index, Mapping) or self._request.get("dryRun"):
            return  # everything else is judged alike by the mongods of all shards
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
        """Begin with this shard, whose mongod refuses whatever all of them would refuse."""
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
        """``_shardsvrCollModParticipant`` with the whole request, or with ``only`` some fields."""
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
