"""``_migrateClone`` and ``_transferMods``, with which the recipient of a migration pulls from the donor.

Besides MongoDB's fields both accept ``number``, which numbers the batches of either from 0: with the same number, a
batch whose reply was lost is handed out again. Without it each call gives the next one, as in MongoDB. Both replies
contain a ``position`` in the donor's oplog: see `shardd.migration.source.clone_source`.
"""

from typing import Any

from bson.int64 import Int64

from shardwright.shardd.commands.command_registry import RawReply, command
from shardwright.shardd.commands.components import ShardComponents
from shardwright.shardd.context.fail_point_names import LOSE_MIGRATE_CLONE_REPLY, LOSE_TRANSFER_MODS_REPLY
from shardwright.shardd.migration.session_argument import migration_session_argument
from shardwright.shardd.migration.source.clone_source import CloneSource
from shardwright.wire import rawbson
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError, ConnectionClosedError
from shardwright.wire.request import Request


@command("_migrateClone", admin_only=True, is_interruptible=True)
async def migrate_clone(shard: ShardComponents, request: Request) -> RawReply:
    """A batch of the range's documents as ``objects``; an empty one ends the clone.

    ``position`` is the time after which the donor follows its oplog; ``busy`` says that clients keep this shard busy.

    Raises:
        CommandError: NotYetInitialized, this shard is not a donor; IllegalOperation, it is one in another migration
            session; BadValue, it is not the turn of that batch; or the error that ended the migration.
    """
    source = await _active_source(shard, request)
    objects = await source.next_clone_batch(_number(request))
    _lose_reply(shard, LOSE_MIGRATE_CLONE_REPLY)
    rest: dict[str, Any] = {"position": source.position}
    if shard.migrations.client_load.is_heavy:
        rest["busy"] = True
    return RawReply((b"\x04objects\0", objects, rawbson.encode_elements(rest)))


@command("_transferMods", admin_only=True, is_interruptible=True)
async def transfer_mods(shard: ShardComponents, request: Request) -> RawReply:
    """A batch of modifications: ``deleted``, to be applied first, and ``reload``; ``size`` is 0 if there are none.

    ``position`` is the time up to which all changes have been handed out.

    Raises:
        CommandError: as for `migrate_clone`.
    """
    source = await _active_source(shard, request)
    mods = await source.next_mods(_number(request))
    _lose_reply(shard, LOSE_TRANSFER_MODS_REPLY)
    return RawReply(
        (
            *(b"\x04deleted\0", rawbson.array_of_documents(mods.deleted)),
            *(b"\x04reload\0", rawbson.array_of_documents(mods.reload)),
            rawbson.encode_elements({"size": Int64(mods.size), "position": mods.position}),
        )
    )


async def _active_source(shard: ShardComponents, request: Request) -> CloneSource:
    session_id = migration_session_argument(request)
    donor = shard.migrations.donor.migration
    if donor is None:
        raise CommandError(ErrorCode.NotYetInitialized, "No active migrations were found")
    return await donor.wait_source(session_id)


def _number(request: Request) -> int | None:
    value = request.get(b"number")
    if value is not None and not isinstance(value, int):
        raise CommandError(ErrorCode.TypeMismatch, '"number" had the wrong type. Expected an integer')
    return value


def _lose_reply(shard: ShardComponents, fail_point: str) -> None:
    """Break the connection, as if the network had failed before the reply, if a fail point is on."""
    if shard.context.fail_points.should_fail(fail_point) is not None:
        raise ConnectionClosedError(shard.context.options.address, f"fail point {fail_point} is enabled", sent=True)
