"""Requests to donors to move a range, for users and for the balancer alike."""

from collections.abc import Mapping
from typing import Any, Final

import bson

from shardwright.configd.primary.primary import Primary
from shardwright.sharding.catalog.settings import CHUNK_SIZE_ID, ChunkSizeSettings
from shardwright.sharding.catalog.shard_entry import ShardEntry
from shardwright.wire.error_codes import Category, ErrorCode, has_category
from shardwright.wire.errors import CommandError

UNTHROTTLED: Final = {"w": 1, "wtimeout": 0}
"""The write concern of the recipient's writes, in the format of the donor's command, without ``secondaryThrottle``."""


async def request_move(primary: Primary, donor: ShardEntry, request: Mapping[str, Any]) -> None:
    """Have a donor move a range, and return once it has; an equal request that is unanswered gets the same answer.

    The donor goes on even if this ends.

    Raises:
        CommandError: the donor's error; HostUnreachable or FailedToSatisfyReadPreference, it cannot be reached.
    """

    async def move() -> None:
        why = f"Migrating chunk(s) in collection {request['_shardsvrMoveRange']}"
        async with primary.shown_locks.shown([str(request["_shardsvrMoveRange"])], "BalancerCommandsScheduler", why):
            await _send(primary, donor, request)

    await primary.migrations.run(bson.encode(request), move)


async def _send(primary: Primary, donor: ShardEntry, request: Mapping[str, Any]) -> None:
    try:
        await primary.shards.command(donor, "admin", request)
    except CommandError as error:
        if not has_category(error.code, Category.NOT_PRIMARY):
            raise
        await primary.shards.check_term()  # or is it this daemon that is not primary any more?
        # Unchanged, the router would mistake this for an error of the config server, and look for its new primary.
        raise CommandError(
            ErrorCode.HostUnreachable, f"the primary of shard {donor.id} changed too often :: caused by :: {error}"
        ) from error


async def chunk_bytes_default(primary: Primary) -> int:
    """The chunk size of collections that have none of their own.

    Raises:
        CommandError: the setting is malformed.
    """
    document = await primary.catalog.find_by_id("settings", CHUNK_SIZE_ID)
    return ChunkSizeSettings.from_document(document).value_bytes
