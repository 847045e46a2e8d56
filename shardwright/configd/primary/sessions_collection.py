"""Setting up ``config.system.sessions``: sharded, with a TTL index that deletes sessions some time after their use.

That time, 30 minutes, is the parameter ``localLogicalSessionTimeoutMinutes`` of the config servers' mongods.

The config servers' primary has it created when a router asks, at its first refresh of sessions, if there are shards.
"""

from typing import TYPE_CHECKING, Final

from shardwright.sharding.catalog.indexes import INDEXES
from shardwright.sharding.session_cache import COLLECTION, DB, NAMESPACE
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.logger import get_logger

if TYPE_CHECKING:
    from shardwright.configd.primary.primary import Primary

logger = get_logger("configd.sessions")

_MAJORITY: Final = {"w": "majority", "wtimeout": 60_000}
_LOCK: Final = f"ns:{NAMESPACE}:setup"


async def set_up_sessions_collection(primary: "Primary") -> None:
    """Have the first shard create and shard the collection unless it is sharded.

    Raises:
        CommandError: ShardNotFound, there are no shards yet; or the shard's error.
    """
    async with primary.locks.hold(_LOCK):
        if await primary.catalog.find_by_id("collections", NAMESPACE) is not None:
            return
        shards = await primary.catalog.shards()
        if not shards:
            raise CommandError(
                ErrorCode.ShardNotFound,
                f"Failed to create {NAMESPACE}: cannot create the collection until there are shards",
            )
        seconds = 60 * await primary.catalog.session_timeout_minutes()
        indexes = [index.to_specification() | {"expireAfterSeconds": seconds} for index in INDEXES[COLLECTION]]
        create = {"createIndexes": COLLECTION, "indexes": indexes, "writeConcern": _MAJORITY}
        await primary.shards.command(shards[0], DB, create)
        shard = {"_shardsvrCreateCollection": COLLECTION, "shardKey": {"_id": 1}, "writeConcern": _MAJORITY}
        await primary.shards.command(shards[0], DB, shard)
    logger.info("The sessions collection is sharded", shard=shards[0].id)
