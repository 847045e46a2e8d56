"""Requests to shards in a term: moves of ranges, refreshes of routing metadata, and the sessions collection.

Both users and the balancer request moves. ``config.system.sessions`` is created when a router requests it at its first
session refresh, if there are shards. It is sharded by ``_id`` and has a TTL index. Sessions expire 30 minutes after
their use: the parameter ``localLogicalSessionTimeoutMinutes`` of the config servers' mongods.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

import bson
import trio

from shardwright.configd.term.term import Term
from shardwright.sharding.catalog.indexes import INDEXES
from shardwright.sharding.catalog.settings import CHUNK_SIZE_ID, ChunkSizeSettings
from shardwright.sharding.catalog.shard_entry import ShardEntry
from shardwright.sharding.session_cache import COLLECTION, DB, NAMESPACE
from shardwright.wire.error_codes import Category, ErrorCode, has_category
from shardwright.wire.errors import CommandError
from shardwright.wire.logger import get_logger

UNTHROTTLED: Final = {"w": 1, "wtimeout": 0}
"""The recipient's write concern without ``secondaryThrottle``, in the format of the donor's command."""


async def request_move(term: Term, donor: ShardEntry, request: Mapping[str, Any]) -> None:
    """Request a move of a range from a donor; returns after the move. A pending equal request shares its answer.

    The donor continues even if this ends.

    Raises:
        CommandError: the donor's error; HostUnreachable or FailedToSatisfyReadPreference, it cannot be reached.
    """

    async def move() -> None:
        why = f"Migrating chunk(s) in collection {request['_shardsvrMoveRange']}"
        async with term.shown_locks.shown([str(request["_shardsvrMoveRange"])], "BalancerCommandsScheduler", why):
            await _send(term, donor, request)

    await term.migrations.run(bson.encode(request), move)


async def _send(term: Term, donor: ShardEntry, request: Mapping[str, Any]) -> None:
    try:
        await term.shards.command(donor, "admin", request)
    except CommandError as error:
        if not has_category(error.code, Category.NOT_PRIMARY):
            raise
        await term.shards.check_term()  # this daemon itself may not be primary any more
        # Unchanged, the router would take this for an error of the config server, and look for its new primary.
        raise CommandError(
            ErrorCode.HostUnreachable, f"the primary of shard {donor.id} changed too often :: caused by :: {error}"
        ) from error


async def chunk_bytes_default(term: Term) -> int:
    """Return the default chunk size of collections; raises a CommandError for a malformed setting."""
    document = await term.catalog.find_by_id("settings", CHUNK_SIZE_ID)
    return ChunkSizeSettings.from_document(document).value_bytes


_MAJORITY: Final = {"w": "majority", "wtimeout": 60_000}


async def refresh_shards(term: Term, namespace: str, owners: Iterable[str]) -> None:
    """Refresh a collection on shards, concurrently.

    The command is sent to all. Then the error of the first failed shard by name is raised.
    """
    flush = {
        "_flushRoutingTableCacheUpdatesWithWriteConcern": namespace,
        "syncFromConfig": True,
        "writeConcern": _MAJORITY,
    }
    errors: dict[str, CommandError] = {}

    async def tell(shard: ShardEntry) -> None:
        try:
            await term.shards.command(shard, "admin", flush)
        except CommandError as error:
            errors[shard.id] = error

    shards = [await term.catalog.shard(shard_id) for shard_id in owners]
    async with trio.open_nursery() as nursery:
        for shard in shards:
            nursery.start_soon(tell, shard)
    for shard_id in sorted(errors):
        raise errors[shard_id]


logger = get_logger("configd.sessions")

_LOCK: Final = f"ns:{NAMESPACE}:setup"


async def set_up_sessions_collection(term: Term) -> None:
    """Create and shard the collection on the first shard unless it is sharded.

    Raises ShardNotFound if there are no shards yet, or the shard's error.
    """
    async with term.locks.hold(_LOCK):
        if await term.catalog.find_by_id("collections", NAMESPACE) is not None:
            return
        shards = await term.catalog.shards()
        if not shards:
            raise CommandError(
                ErrorCode.ShardNotFound,
                f"Failed to create {NAMESPACE}: cannot create the collection until there are shards",
            )
        seconds = 60 * await term.catalog.session_timeout_minutes()
        indexes = [index.to_specification() | {"expireAfterSeconds": seconds} for index in INDEXES[COLLECTION]]
        create = {"createIndexes": COLLECTION, "indexes": indexes, "writeConcern": _MAJORITY}
        await term.shards.command(shards[0], DB, create)
        shard = {"_shardsvrCreateCollection": COLLECTION, "shardKey": {"_id": 1}, "writeConcern": _MAJORITY}
        await term.shards.command(shards[0], DB, shard)
    logger.info("The sessions collection is sharded", shard=shards[0].id)
