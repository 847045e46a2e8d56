"""Changing the shard key of a collection: refining and resharding.

**Refining** (``_shardsvrRefineCollectionShardKey``) adds fields to the end of the key. No document moves, so operations
continue: those admitted with the shorter key write to the shard that owns their documents by the longer key too. Only
migrations are blocked.

**Resharding** (``_shardsvrReshardCollection``) is led by the config servers. This coordinator excludes other changes of
the database until they have ended it. If this shard's primary is lost, the next one takes the lock again and waits for
the same operation. Its id is persisted before it is sent to the config servers, so that an aborted operation is not
started again. The router provides the id, because it repeats a request whose reply is lost, and this coordinator may
have ended by then.
"""

from typing import Any, ClassVar, Final
from uuid import UUID, uuid4

from bson.binary import Binary

from shardwright.shardd.context.shard_context import send_to_shard
from shardwright.shardd.ddl.coordinator import Coordinator, check_expected_uuid, migrations_blocked
from shardwright.shardd.local_mongod.shard_key_index import has_supporting_index
from shardwright.sharding.chunk_changes import is_extended_by
from shardwright.sharding.routing_table import RoutingTable
from shardwright.sharding.shard_key import ShardKeyPattern
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.rawbson import decode_document, raw_document

REFINE: Final = "RefineCollectionShardKey"


class RefineCollectionShardKey(Coordinator):
    """Refines a shard key. The arguments are ``newShardKey``, ``collectionUUID`` and ``enforceUniquenessCheck``.

    A persisted change also has ``oldKey``, ``oldEpoch`` and ``refinedUUID``, which identify the collection.
    """

    operation_type: ClassVar[str] = "refineCollectionShardKey"

    async def run(self) -> dict[str, Any]:
        """Refine the key, unless the collection has it already.

        Raises:
            CommandError: NamespaceNotSharded, CollectionUUIDMismatch; InvalidOptions, the key does not extend the
                current one, or an owner of chunks lacks an index that supports it; BadValue, it is not a key.
        """
        pattern = ShardKeyPattern.from_mapping(self.arguments["newShardKey"])
        if self.phase is None:
            table = await self._checked_table(pattern)
            if table.key_pattern.fields == pattern.fields:
                return {}
            await self._begin(table)
        else:
            await self.enter_phase(self.phase)  # its commands differ from an earlier attempt's
        async with migrations_blocked(self, UUID(bytes=bytes(self.arguments["refinedUUID"]))):
            await self._refine(pattern)
        return {}

    async def _checked_table(self, pattern: ShardKeyPattern) -> RoutingTable:
        await check_expected_uuid(self.context.mongod, self.namespace, self.arguments.get("collectionUUID"))
        table = await self.read_routing()
        if table is None:
            raise CommandError(ErrorCode.NamespaceNotSharded, f"Collection {self.namespace} is not sharded.")
        if not is_extended_by(table.key_pattern, pattern):
            raise CommandError(
                ErrorCode.InvalidOptions,
                f"refineCollectionShardKey shard key {pattern} does not extend the current shard key "
                f"{table.key_pattern}",
            )
        return table

    async def _begin(self, table: RoutingTable) -> None:
        collection = table.collection
        await self.enter_phase(
            REFINE,
            oldKey=raw_document(collection.key_pattern.document),
            oldEpoch=collection.epoch,
            refinedUUID=Binary.from_uuid(collection.uuid),
        )

    async def _refine(self, pattern: ShardKeyPattern) -> None:
        """Check the owners, which no longer change, and commit.

        The command that forbade migrations has waited for any earlier attempt's commit in progress. The config servers
        refuse a commit that arrives later, because of its transaction number.
        """
        table = await self.read_routing()
        # If the key is still the former one, no earlier commit has taken effect, and none will do so later.
        self.must_finish = table is not None and table.key_pattern.fields == pattern.fields
        if table is not None and not self.must_finish:
            for shard_id in sorted(table.shards):
                await self._check_index(shard_id, pattern, is_unique=table.collection.unique)
        await self.enter_phase(REFINE)  # for another command to the config servers
        with self.point_of_no_return():
            await (await self.context.catalog()).commit(
                {
                    "_configsvrRefineCollectionShardKey": str(self.namespace),
                    "key": raw_document(pattern.document),
                    "epoch": self.arguments["oldEpoch"],
                    **self.session,
                }
            )

    async def _check_index(self, shard_id: str, pattern: ShardKeyPattern, *, is_unique: bool) -> None:
        """Check that a shard has an index that supports the new key."""
        db = self.namespace.db
        listing = await send_to_shard(self.context, shard_id, db, {"listIndexes": self.namespace.collection})
        indexes = listing["cursor"]["firstBatch"]
        unique = is_unique and bool(self.arguments.get("enforceUniquenessCheck", True))
        if not has_supporting_index(self.namespace, pattern, indexes, unique=unique):
            raise CommandError(
                ErrorCode.InvalidOptions,
                "Please create an index that starts with the proposed shard key before refining the shard key of the "
                "collection",
            )
        # mongod checks whether it is multikey, which its specification does not show.
        check = {"checkShardingIndex": str(self.namespace), "keyPattern": decode_document(pattern.document)}
        await send_to_shard(self.context, shard_id, db, check)


RESHARD: Final = "reshard"
_ID: Final = "reshardingUUID"
_UUID: Final = "collectionUUID"


class ReshardCollection(Coordinator):
    """Reshards a collection. The arguments are the fields of the request: ``key``, ``unique``, ``zones`` and so on."""

    operation_type: ClassVar[str] = "reshardCollection"
    not_compared: ClassVar[frozenset[str]] = frozenset({_ID})

    @property
    def conflict_text(self) -> str:
        """MongoDB 6.0's text for resharding."""
        return "Another reshard collection with different arguments is already running for the same namespace"

    async def run(self) -> dict[str, Any]:
        """Start the resharding operation on the config servers, and wait for its end.

        Raises:
            CommandError: NamespaceNotSharded; CollectionUUIDMismatch; BadValue and others, an option is not allowed;
                the error for which the operation was aborted.
        """
        if self.phase is None:
            await check_expected_uuid(self.context.mongod, self.namespace, self.arguments.get(_UUID))
        await self.enter_phase(RESHARD, **{_ID: self.arguments.get(_ID, Binary.from_uuid(uuid4()))})
        options = {name: value for name, value in self.arguments.items() if name not in ("session", _UUID)}
        catalog = await self.context.catalog()
        # An error of the config servers is the outcome of the operation with this id, whichever attempt started it.
        self.must_finish = False
        with self.point_of_no_return():
            await catalog.commit({"_configsvrReshardCollection": str(self.namespace), **options})
        return {}
