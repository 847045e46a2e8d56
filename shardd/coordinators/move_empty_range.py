"""Giving a range without documents to another shard (``_shardsvrMoveRange``).

Nothing has to be copied: behind a critical section, the range is found to be empty and the config servers are told. A
commit whose outcome was lost is made impossible before anything goes on, since it could still take effect later.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, Final
from uuid import UUID

from bson.binary import Binary

from shardd import local_collections
from shardd.changelog import log_change
from shardd.coordinators.coordinator import Coordinator
from shardd.critical_sections import held_exclusively
from shardd.ddl_locks import chunk_lock
from shardd.other_shards import send_to_shard
from shardd.range_contents import is_range_empty
from shardd.routing import refreshed_table
from sharding.chunks import ChunkRange
from sharding.routing_table import RoutedChunk, RoutingTable
from wire.error_codes import ErrorCode
from wire.errors import CommandError
from wire.rawbson import encode_document, raw_document

COMMIT: Final = "commit"


@dataclass(frozen=True, slots=True)
class _Move:
    """A move that may be made: the range, the chunk it lies in, and the table that says so."""

    table: RoutingTable
    chunk: RoutedChunk
    range: ChunkRange


class MoveEmptyRange(Coordinator):
    """The arguments are ``toShard``, ``min``, ``max`` and ``epoch``; once begun, also what is needed to undo it."""

    operation_type: ClassVar[str] = "moveEmptyRange"

    @property
    def locks(self) -> list[str]:
        """That of the collection's chunks on this shard."""
        return [chunk_lock(str(self.namespace))]

    async def run(self) -> dict[str, Any]:
        """Move the range; one that has moved already is fine.

        Raises:
            CommandError: StaleConfig, another incarnation of the collection; IncompatibleShardingMetadata, the range is
                no part of a chunk of this shard; CommandNotSupported, it holds documents; and what the config servers
                answer.
        """
        if self.phase is not None:
            await self._rule_out_lost_commit()
        move = await self._prepare()
        if move is None:
            return {}
        shard, namespace, recipient = self.shard, self.namespace, self.arguments["toShard"]
        bounds = {**move.range.to_document(), "from": shard.require_identity().shard_name, "to": recipient}
        await log_change(shard, "moveChunk.start", str(namespace), bounds)
        await self._prepare_recipient(move.table)
        state = shard.namespace(str(namespace))
        async with held_exclusively(state, {"command": "moveRange", "ns": str(namespace)}):
            if not await is_range_empty(shard.mongod, namespace, move.table.key_pattern, move.range):
                raise CommandError(
                    ErrorCode.CommandNotSupported,
                    "moving a range that holds documents to another shard is not supported",
                )
            await self._commit(move)
            state.forget()
            await shard.refresher.refresh_collection(state)
        await log_change(shard, "moveChunk.commit", str(namespace), bounds)
        flush = {"_flushRoutingTableCacheUpdates": str(namespace), "syncFromConfig": True}
        await send_to_shard(shard, recipient, "admin", flush)
        return {}

    async def _prepare(self) -> _Move | None:
        """What is to be done; None if the range is where it shall be."""
        table = await refreshed_table(self.shard, self.namespace, self.arguments["epoch"])
        low = encode_document(self.arguments["min"])
        chunk = table.chunk_for_key(table.key_pattern.key_bytes(low))
        # A range without documents is never too big to move.
        high = encode_document(self.arguments["max"]) if "max" in self.arguments else chunk.max
        moved = ChunkRange.of(table.key_pattern, low, high)
        if chunk.shard == self.arguments["toShard"]:
            return None
        if chunk.shard != self.shard.require_identity().shard_name or moved.max_key > chunk.max_key:
            raise CommandError(
                ErrorCode.IncompatibleShardingMetadata,
                f"the range {moved} of {self.namespace} is not part of a chunk of this shard",
            )
        return _Move(table, chunk, moved)

    async def _prepare_recipient(self, table: RoutingTable) -> None:
        """See to it that the recipient has the collection with its indexes."""
        mongod = self.shard.mongod
        local = await local_collections.describe(mongod, self.namespace)
        if local is None or local.uuid != table.collection.uuid:
            raise CommandError(
                ErrorCode.InvalidUUID, f"{self.namespace} is not on this shard under the UUID {table.collection.uuid}"
            )
        indexes = await local_collections.list_indexes(mongod, self.namespace)
        participate = {
            "_shardsvrCreateCollectionParticipant": self.namespace.collection,
            "options": dict(local.options),
            "indexes": [index for index in indexes if index["name"] != "_id_"],
            "collectionUUID": Binary.from_uuid(table.collection.uuid),
            "idIndex": local.id_index,
        }
        await send_to_shard(self.shard, self.arguments["toShard"], self.namespace.db, participate)

    async def _commit(self, move: _Move) -> None:
        collection = move.table.collection
        version = collection.version(move.chunk.version)
        await self.enter_phase(
            COMMIT,
            chunkMin=raw_document(move.chunk.min),
            chunkMax=raw_document(move.chunk.max),
            chunkVersion=version.to_document(),
            collectionUUID=Binary.from_uuid(collection.uuid),
        )
        catalog = await self.shard.catalog()
        commit = {
            "_configsvrCommitChunkMigration": str(self.namespace),
            "fromShard": self.shard.require_identity().shard_name,
            "toShard": self.arguments["toShard"],
            "migratedChunk": {**move.range.to_document(), "lastmod": version.to_document()},
            "fromShardCollectionVersion": move.table.collection_version.to_document(),
            "validAfter": await self.shard.placement_time(),
        }
        with self.point_of_no_return():
            await catalog.commit(commit)

    async def _rule_out_lost_commit(self) -> None:
        """Make sure that a commit sent earlier has either happened by now or never will."""
        self.must_finish = True
        catalog = await self.shard.catalog()
        await catalog.commit(
            {
                "_configsvrEnsureChunkVersionIsGreaterThan": str(self.namespace),
                "minKey": self.arguments["chunkMin"],
                "maxKey": self.arguments["chunkMax"],
                "version": self.arguments["chunkVersion"],
                "collectionUUID": Binary.from_uuid(UUID(bytes=bytes(self.arguments["collectionUUID"]))),
            }
        )
        self.must_finish = False
