"""``createIndexes``: on all shards that own a part of the collection, or, as far as possible, on none.

Each shard validates a specification against its own indexes, and builds from its own documents. So shards that may
refuse a specification are asked first; and if a build fails on one shard, the indexes that the command built on others
are dropped again. MongoDB 6.0 leaves them.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import bson

from shardwright.router.commands.command_registry import command
from shardwright.router.ddl.created_indexes import (
    built_names,
    has_built_nothing,
    is_for_good,
    may_conflict,
    requested_indexes,
)
from shardwright.router.ddl.raw_replies import merge_raw
from shardwright.router.operations.operation import Operation
from shardwright.router.operations.retry import on_buckets_if_sharded, with_routing
from shardwright.router.operations.routed_sending import connection_strings
from shardwright.router.operations.scatter import forwarded, scatter
from shardwright.router.placement.collection_routing import CollectionRouting
from shardwright.router.replies.own_reply import Reply
from shardwright.router.replies.shard_reply import ShardReply
from shardwright.router.replies.worst_error import raise_worst
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.frames import next_request_id
from shardwright.wire.logger import get_logger
from shardwright.wire.message import op_msg
from shardwright.wire.rawbson import append

logger = get_logger("router.indexes")


@command("createIndexes", api_versions=("1",), supports_write_concern=True)
async def create_indexes(operation: Operation) -> Reply:
    """Creates indexes on all shards that own a part of the collection."""

    async def create(operation: Operation) -> Reply:
        creation = IndexCreation(operation)
        replies = await with_routing(operation, operation.namespace, creation.attempt, create_database=True)
        return merge_raw(replies, connection_strings(operation))

    return await on_buckets_if_sharded(operation, create)


class IndexCreation:
    """One ``createIndexes`` in progress."""

    def __init__(self, operation: Operation) -> None:
        self._operation = operation
        self._requested = requested_indexes(operation.request)
        # The indexes before anything was built; another attempt finds what this one has built.
        self._existing: dict[str, Sequence[Mapping[str, Any]]] = {}

    async def attempt(self, routing: CollectionRouting) -> Sequence[ShardReply]:
        """The replies of all shards by name, or, if one refuses in advance, of those that may refuse.

        Raises:
            StaleRoutingError: some shard refused the versions.
            CommandError: some shard does not list its indexes.
        """
        shards = sorted(routing.shards)
        if len(shards) == 1 or not self._requested or self._operation.transaction is not None:
            return await self._create(routing, shards)
        await self._find_existing(routing, [shard for shard in shards if shard not in self._existing])
        first = [shard for shard in shards if may_conflict(self._requested, self._existing[shard])]
        replies = await self._create(routing, first)
        if not _failed(replies):
            replies += await self._create(routing, [shard for shard in shards if shard not in first])
        if not _failed(replies):
            replies = await self._confirm(routing, replies)
        if _failed(replies):
            await self._undo(routing, replies)
        return sorted(replies, key=lambda reply: reply.shard_id)

    async def _create(self, routing: CollectionRouting, shards: Sequence[str]) -> list[ShardReply]:
        frames = {shard: forwarded(self._operation, routing.versions_for(shard)) for shard in shards}
        replies = await scatter(self._operation, frames) if frames else []
        for reply in replies:
            reply.raise_if_stale()
        return replies

    async def _confirm(self, routing: CollectionRouting, replies: Sequence[ShardReply]) -> list[ShardReply]:
        """Ask shards where nothing had to be built once more, if something was built elsewhere.

        Another client's command for the same index may have failed in the meantime, and its index may be gone.
        """
        idle = [each.shard_id for each in replies if has_built_nothing(each)]
        again = await self._create(routing, idle) if len(idle) < len(replies) else []
        return [each for each in replies if not again or each.shard_id not in idle] + again

    async def _find_existing(self, routing: CollectionRouting, shards: Sequence[str]) -> None:
        collection = self._operation.request.collection
        replies = await self._ask(routing, {shard: {"listIndexes": collection} for shard in shards})
        missing = [reply for reply in replies if reply.error and reply.error.code == ErrorCode.NamespaceNotFound]
        raise_worst(reply for reply in replies if reply not in missing)
        for reply in replies:
            self._existing[reply.shard_id] = () if reply in missing else reply.document["cursor"]["firstBatch"]

    async def _undo(self, routing: CollectionRouting, replies: Sequence[ShardReply]) -> None:
        """Drop the indexes built for this command if they can't be built everywhere. If that fails, they stay."""
        if not all(reply.error is None or is_for_good(reply.error) for reply in replies):
            return  # the client will retry
        names = {each.shard_id: built_names(each, self._requested, self._existing[each.shard_id]) for each in replies}
        for name in sorted({name for built in names.values() for name in built}):
            await self._drop(routing, name, [shard for shard, built in names.items() if name in built])

    async def _drop(self, routing: CollectionRouting, name: str, shards: Sequence[str]) -> None:
        """Drop one index: a shard that lacks one of several drops none of them."""
        concern = {"w": "majority", "wtimeout": 60_000}
        drop = {"dropIndexes": self._operation.request.collection, "index": name, "writeConcern": concern}
        for reply in await self._ask(routing, dict.fromkeys(shards, drop)):
            if reply.error is not None and reply.error.code != ErrorCode.IndexNotFound:
                logger.warning(
                    "Indexes stay that could not be built on all shards",
                    namespace=routing.namespace,
                    shard=reply.shard_id,
                    index=name,
                    error=str(reply.error),
                )

    async def _ask(self, routing: CollectionRouting, commands: Mapping[str, Mapping[str, Any]]) -> list[ShardReply]:
        """The shards' replies to the router's own commands, which carry the versions of the collection."""
        db = self._operation.request.db
        frames = {
            shard: op_msg(
                append(bson.encode({**command, "$db": db}), routing.versions_for(shard)), request_id=next_request_id()
            )
            for shard, command in commands.items()
        }
        return await scatter(self._operation, frames) if frames else []


def _failed(replies: Sequence[ShardReply]) -> bool:
    return any(reply.error is not None for reply in replies)
