"""``collMod`` on all shards that have a collection (``_shardsvrCollMod``).

What changes several shards is asked of all of them before it is done on any. No chunk moves meanwhile, or a shard might
get the collection as it was.
"""

from collections.abc import Mapping, Set
from typing import Any, ClassVar, Final

from bson.binary import Binary

from shardwright.shardd.context.other_shards import all_shard_ids, send_to_shard, send_to_shards
from shardwright.shardd.ddl.coordinators.allow_migrations import allow_migrations
from shardwright.shardd.ddl.coordinators.coordinator import Coordinator
from shardwright.sharding.bson_text import document_text
from shardwright.sharding.catalog.reads import read_routing
from shardwright.sharding.routing_table import RoutingTable
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.rawbson import encode_document

BLOCK_SHARDS: Final = "BlockShards"
UPDATE_SHARDS: Final = "UpdateShards"

_HAS_IT_NOT: Final = frozenset({ErrorCode.NamespaceNotFound, ErrorCode.CollectionUUIDMismatch})
_REFUSED_FOR_INDEX: Final = frozenset(
    {ErrorCode.IndexNotFound, ErrorCode.InvalidOptions, ErrorCode.CannotConvertIndexToUnique}
)


class ModifyCollection(Coordinator):
    """The argument ``collModRequest`` holds the fields of the user's ``collMod``."""

    operation_type: ClassVar[str] = "collMod_V2"

    async def run(self) -> dict[str, Any]:
        """Run it where an unsharded collection or view lives, which is here, or on all shards that have the collection.

        Raises:
            CommandError: what mongod answers; IndexNotFound, CannotConvertIndexToUnique and others, a shard refused
                before anything was changed.
        """
        table = await self._read_routing()
        if table is None:
            with self.point_of_no_return():
                results = await self._send({self._me}, self._order(perform_view_change=True))
        else:
            results = await self._modify_sharded(table)
        shards = await (await self.context.catalog()).shards()
        return {"raw": {shards[shard_id].host: result for shard_id, result in sorted(results.items())}}

    async def _modify_sharded(self, table: RoutingTable) -> dict[str, Any]:
        await self.enter_phase(self.phase or BLOCK_SHARDS)
        try:
            with self.point_of_no_return():
                await allow_migrations(self.context, self.namespace, table.collection.uuid, allow=False)
                # From here on the owners stay what they are.
                table = await self._read_routing() or table
                if self.phase == BLOCK_SHARDS:
                    await self._ask_owners(table)
                    await self.enter_phase(UPDATE_SHARDS)
                results = await self._modify_on_shards(table)
        except CommandError:
            if not self.must_finish:
                await self._thaw(table)
                self.must_finish = False
            raise
        await self._thaw(table)
        return results

    async def _read_routing(self) -> RoutingTable | None:
        catalog = await self.context.catalog()
        return await catalog.read(read_routing(str(self.namespace)))

    async def _thaw(self, table: RoutingTable) -> None:
        """Let chunks move again; that has to be done, whatever has become of the change."""
        self.must_finish = True
        await allow_migrations(self.context, self.namespace, table.collection.uuid, allow=True)

    async def _ask_owners(self, table: RoutingTable) -> None:
        """Find out what a shard that owns chunks would refuse.

        Raises:
            CommandError: what it is.
        """
        index = self._request.get("index")
        if not isinstance(index, Mapping) or self._request.get("dryRun"):
            return  # on all shards mongod judges all else in the same way
        for shard_id in sorted(table.shards):
            await self._check_index(shard_id, index)
        if index.get("unique"):
            await self._send(set(table.shards), self._order(index=index, dryRun=True))

    async def _check_index(self, shard_id: str, index: Mapping[str, Any]) -> None:
        listing = {"listIndexes": self.namespace.collection}
        reply = await send_to_shard(self.context, shard_id, self.namespace.db, listing)
        name, key = index.get("name"), index.get("keyPattern", {})
        found = [each for each in reply["cursor"]["firstBatch"] if each["name"] == name or each["key"] == key]
        if not found and (name or key):
            wanted = name or document_text(encode_document(key))
            raise CommandError(ErrorCode.IndexNotFound, f"cannot find index {wanted} for ns {self.namespace}")

    async def _modify_on_shards(self, table: RoutingTable) -> dict[str, Any]:
        """This shard first, where mongod refuses what it would refuse everywhere; then the owners, then the others."""
        owners = set(table.shards)
        order = {**self._order(uuid=Binary.from_uuid(table.collection.uuid)), **self.session}
        results: dict[str, Any] = {}
        if self._me in owners:
            results |= await self._send({self._me}, order)
        else:
            await self._modify_bystander(results, order, self._me)
        results |= await self._send(owners - {self._me}, order)
        for shard_id in sorted(set(await all_shard_ids(self.context)) - owners - {self._me}):
            await self._modify_bystander(results, order, shard_id)
        return results

    async def _modify_bystander(self, results: dict[str, Any], order: Mapping[str, Any], shard_id: str) -> None:
        """Modify a collection without chunks, if it is there.

        Its indexes are not kept up: if it is refused for one of them, the rest is changed. They are brought into line
        when the shard receives a chunk.
        """
        request = order["collModRequest"]
        try:
            results |= await self._send({shard_id}, order)
        except CommandError as error:
            if error.code in _REFUSED_FOR_INDEX and "index" in request:
                rest = {name: value for name, value in request.items() if name != "index"}
                await self._modify_bystander(results, {**order, "collModRequest": rest}, shard_id)
            elif error.code not in _HAS_IT_NOT:
                raise

    async def _send(self, shard_ids: Set[str], order: Mapping[str, Any]) -> dict[str, Any]:
        replies = await send_to_shards(self.context, shard_ids, self.namespace.db, order)
        return {shard_id: reply["result"] for shard_id, reply in replies.items()}

    def _order(
        self, *, perform_view_change: bool = False, uuid: Binary | None = None, **only: object
    ) -> dict[str, Any]:
        """``_shardsvrCollModParticipant`` of the whole request, or ``only`` of some of it."""
        request = only or ({} if uuid is None else {"collectionUUID": uuid}) | self._request
        return {
            "_shardsvrCollModParticipant": self.namespace.collection,
            "collModRequest": request,
            "needsUnblock": False,
            "performViewChange": perform_view_change,
        }

    @property
    def _request(self) -> dict[str, Any]:
        request: dict[str, Any] = self.arguments["collModRequest"]
        return request

    @property
    def _me(self) -> str:
        return self.context.require_identity().shard_name
