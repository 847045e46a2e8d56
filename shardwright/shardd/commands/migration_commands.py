"""Migration commands: from the config servers to the donor, between donor and recipient, and for session migration."""

from collections.abc import Mapping
from typing import Any

from bson.int64 import Int64

from shardwright.shardd.commands.command import RawReply, ShardComponents
from shardwright.shardd.context.fail_point_names import LOSE_MIGRATE_CLONE_REPLY, LOSE_TRANSFER_MODS_REPLY
from shardwright.shardd.migration.active_migrations import migration_session_argument
from shardwright.shardd.migration.documents import ABORTED, COMMITTED
from shardwright.shardd.migration.donor.request import MoveRangeRequest
from shardwright.shardd.migration.recipient.migration import not_steady
from shardwright.shardd.migration.recipient.request import ReceiveRequest
from shardwright.shardd.migration.recipient.service import RecipientService
from shardwright.shardd.migration.source.clone_source import CloneSource
from shardwright.shardd.migration.source.range_documents import digest
from shardwright.sharding.arguments import full_namespace
from shardwright.sharding.chunks import ChunkRange
from shardwright.sharding.shard_key import ShardKeyPattern
from shardwright.wire import rawbson
from shardwright.wire.arguments import Arguments
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError, ConnectionClosedError
from shardwright.wire.rawbson import ARRAY, array_of_documents, element
from shardwright.wire.request import Request


async def migrate_clone(shard: ShardComponents, request: Request) -> RawReply:
    """Return a batch of the range's documents as ``objects``; an empty one ends the clone.

    The donor follows its oplog from the time ``position``. ``busy`` reports a heavy client load on this shard.

    Raises:
        CommandError: NotYetInitialized, this shard is not a donor; IllegalOperation, the migration session is another
            one; BadValue, the batch number is out of turn; or the error that ended the migration.
    """
    source = await _active_source(shard, request)
    objects = await source.next_clone_batch(_number(request))
    _lose_reply(shard, LOSE_MIGRATE_CLONE_REPLY)
    rest: dict[str, Any] = {"position": source.position}
    if shard.migrations.client_load.is_heavy:
        rest["busy"] = True
    return RawReply((b"\x04objects\0", objects, rawbson.encode_elements(rest)))


async def transfer_mods(shard: ShardComponents, request: Request) -> RawReply:
    """Return a batch of modifications: ``deleted``, to be applied first, and ``reload``.

    ``size`` is 0 if there are none. ``position`` is the time of the last change sent. Errors are as for
    `migrate_clone`.
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
    """Close the connection as a network failure before the reply would, if a fail point is on."""
    if shard.context.fail_points.should_fail(fail_point) is not None:
        raise ConnectionClosedError(shard.context.options.address, f"fail point {fail_point} is enabled", sent=True)


async def recv_chunk_start(shard: ShardComponents, request: Request) -> dict[str, Any]:
    """Begin to receive a range. The request may be repeated.

    Accepts ``collectionUUID`` and ``attempts``, the donor's record of this migration, in addition to MongoDB's fields.
    If the record agrees with the recipient's, the reply has ``resumeFrom: {key, position}``: the key and the time from
    which documents and changes are still needed.

    Raises:
        CommandError: ConflictingOperationInProgress, another migration is in progress on this shard.
    """
    recipient = await _recovered(shard)
    return await recipient.start(ReceiveRequest.from_request(request))


async def recv_chunk_status(shard: ShardComponents, request: Request) -> dict[str, Any]:
    """Report the progress of the active or last migration to this shard."""
    status = (await _recovered(shard)).status
    if not Arguments.of(request).boolean(b"waitForSteadyOrDone", False):
        return status.report()
    await status.wait_steady_or_done()
    return {"waited": True, **status.report()}


async def recv_chunk_commit(shard: ShardComponents, request: Request) -> dict[str, Any]:
    """Apply the last modifications, and enter the critical section until the donor reports the decision.

    Raises CommandFailed if the migration is not steady or cannot be completed.
    """
    session_id = migration_session_argument(request)
    recipient = await _recovered(shard)
    migration = recipient.of_session(session_id)
    if migration is None:
        raise not_steady(session_id, recipient.active)
    await migration.commit()
    return migration.status.report()


async def recv_chunk_release_critical_section(shard: ShardComponents, request: Request) -> dict[str, Any]:
    """Leave the critical section after the decision. Needs majority write concern. The request may be repeated."""
    session_id = migration_session_argument(request)
    _require_majority(request)
    migration = (await _recovered(shard)).of_session(session_id)
    if migration is not None:
        await migration.release()
    return {}


async def recv_chunk_abort(shard: ShardComponents, request: Request) -> dict[str, Any]:
    """Abort a migration, unless its critical section has begun. The request may be repeated."""
    session_id = migration_session_argument(request)
    recipient = await _recovered(shard)
    migration = recipient.of_session(session_id)
    if migration is not None:
        await migration.abort()
    return recipient.status.report()


async def finish_range_deletion(shard: ShardComponents, request: Request) -> dict[str, Any]:
    """Act on the outcome of a migration to this shard: ``committed`` or ``aborted``. The request may be repeated.

    MongoDB's donors change the recipient's ``config.rangeDeletions`` themselves.
    """
    migration_id = Arguments.of(request).uuid(b"migrationId")
    decision = Arguments.of(request).string(b"decision")
    if decision not in (COMMITTED, ABORTED):
        raise CommandError(ErrorCode.BadValue, f"'{decision}' is not a decision about a migration")
    await (await _recovered(shard)).finish(migration_id, decision)
    return {}


async def digest_range(shard: ShardComponents, request: Request) -> dict[str, Any]:
    """Return a digest of the range's documents; the donor compares it with its own.

    Raises CollectionUUIDMismatch if the local collection has another UUID, or IndexNotFound.
    """
    namespace = full_namespace(request)
    uuid = Arguments.of(request).uuid(b"collectionUUID")
    pattern = ShardKeyPattern.from_bson(Arguments.of(request).raw(b"shardKeyPattern"))
    wanted = ChunkRange.of(pattern, Arguments.of(request).raw(b"min"), Arguments.of(request).raw(b"max"))
    return (await digest(shard.context.mongod, namespace, uuid, pattern, wanted)).to_document()


async def _recovered(shard: ShardComponents) -> RecipientService:
    """Return the recipient service once it has recovered the critical sections of earlier terms.

    Before recovery it would deny them. Raises NotWritablePrimary.
    """
    await shard.context.recovery_gate.wait_open()
    return shard.migrations.recipient


def _require_majority(request: Request) -> None:
    write_concern = request.get(b"writeConcern")
    if isinstance(write_concern, Mapping) and write_concern.get("w") == "majority":
        return
    got = '{ w: 1, wtimeout: 0, provenance: "implicitDefault" }' if write_concern is None else write_concern
    raise CommandError(
        ErrorCode.InvalidOptions, f'"{request.name}" must be called with majority writeConcern, got: {got} '
    )


async def move_range(shard: ShardComponents, request: Request) -> dict[str, Any]:
    """Move a range to another shard; return when it has moved. The move continues if the client disconnects.

    Errors are as for `shardd.migration.migrations.Migrations.move_range`.
    """
    await shard.migrations.move_range(MoveRangeRequest.from_request(request))
    return {}


async def get_next_session_mods(shard: ShardComponents, request: Request) -> RawReply:
    """Return the next batch of the session migration as ``oplog``; empty if there is no more at the moment.

    Our own field ``number`` numbers the batches from 0, so that a batch can be requested again after its reply was
    lost.

    Raises:
        CommandError: NotYetInitialized, this shard is not a donor; IllegalOperation, the migration session is another
            one; BadValue, the number is neither the last batch's nor the next.
    """
    session_id = migration_session_argument(request)
    database = shard.migrations.databases.source(session_id)
    donor = shard.migrations.donor.migration
    if database is not None:
        history = database.history
    elif donor is not None:
        history = await donor.wait_history(session_id)
    else:
        raise CommandError(ErrorCode.NotYetInitialized, "No active migrations were found")
    number = request.get(b"number")
    batch = await history.next_batch(None if number is None else int(number))
    return RawReply([element(b"oplog", ARRAY, array_of_documents(batch))])
