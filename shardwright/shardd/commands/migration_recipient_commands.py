"""The commands of a donor to the recipient of its migration: the ``_recvChunk`` commands and two of our own."""

from collections.abc import Mapping
from typing import Any

from shardwright.shardd.commands.command_registry import command
from shardwright.shardd.commands.components import ShardComponents
from shardwright.shardd.migration.documents import ABORTED, COMMITTED
from shardwright.shardd.migration.recipient.migration import not_steady
from shardwright.shardd.migration.recipient.request import ReceiveRequest
from shardwright.shardd.migration.recipient.service import RecipientService
from shardwright.shardd.migration.session_argument import migration_session_argument
from shardwright.shardd.migration.source.digest import digest
from shardwright.sharding.arguments import full_namespace
from shardwright.sharding.chunks import ChunkRange
from shardwright.sharding.shard_key import ShardKeyPattern
from shardwright.wire.arguments import Arguments
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.request import Request


@command("_recvChunkStart", admin_only=True)
async def recv_chunk_start(shard: ShardComponents, request: Request) -> dict[str, Any]:
    """Begin to receive a range. The request may be repeated.

    Besides MongoDB's fields it accepts ``collectionUUID`` and ``attempts``, the donor's record of this migration. If
    that agrees with the recipient's, the reply's ``resumeFrom: {key, position}`` says from where on documents and
    changes are still needed.

    Raises:
        CommandError: ConflictingOperationInProgress, another migration is under way on this shard.
    """
    recipient = await _recovered(shard)
    return await recipient.start(ReceiveRequest.from_request(request))


@command("_recvChunkStatus", admin_only=True)
async def recv_chunk_status(shard: ShardComponents, request: Request) -> dict[str, Any]:
    """Report the progress of the range that this shard is receiving, or received last."""
    status = (await _recovered(shard)).status
    if not Arguments.of(request).boolean(b"waitForSteadyOrDone", False):
        return status.report()
    await status.wait_steady_or_done()
    return {"waited": True, **status.report()}


@command("_recvChunkCommit", admin_only=True)
async def recv_chunk_commit(shard: ShardComponents, request: Request) -> dict[str, Any]:
    """Apply the last modifications, and enter the critical section until the donor reports the decision.

    Raises:
        CommandError: CommandFailed, the migration is not steady, or cannot be completed.
    """
    session_id = migration_session_argument(request)
    recipient = await _recovered(shard)
    migration = recipient.of_session(session_id)
    if migration is None:
        raise not_steady(session_id, recipient.active)
    await migration.commit()
    return migration.status.report()


@command("_recvChunkReleaseCritSec", admin_only=True)
async def recv_chunk_release_critical_section(shard: ShardComponents, request: Request) -> dict[str, Any]:
    """Leave the critical section after the decision. The request may be repeated.

    Raises:
        CommandError: InvalidOptions, it does not have majority write concern.
    """
    session_id = migration_session_argument(request)
    _require_majority(request)
    migration = (await _recovered(shard)).of_session(session_id)
    if migration is not None:
        await migration.release()
    return {}


@command("_recvChunkAbort", admin_only=True)
async def recv_chunk_abort(shard: ShardComponents, request: Request) -> dict[str, Any]:
    """Abort a migration, unless its critical section has begun. The request may be repeated."""
    session_id = migration_session_argument(request)
    recipient = await _recovered(shard)
    migration = recipient.of_session(session_id)
    if migration is not None:
        await migration.abort()
    return recipient.status.report()


@command("_shardsvrFinishRangeDeletion", admin_only=True)
async def finish_range_deletion(shard: ShardComponents, request: Request) -> dict[str, Any]:
    """Act on the outcome of a migration to this shard: ``committed`` or ``aborted``. The request may be repeated.

    MongoDB's donors change the recipient's ``config.rangeDeletions`` themselves.

    Raises:
        CommandError: BadValue, no such decision.
    """
    migration_id = Arguments.of(request).uuid(b"migrationId")
    decision = Arguments.of(request).string(b"decision")
    if decision not in (COMMITTED, ABORTED):
        raise CommandError(ErrorCode.BadValue, f"'{decision}' is not a decision about a migration")
    await (await _recovered(shard)).finish(migration_id, decision)
    return {}


@command("_shardsvrDigestRange", admin_only=True)
async def digest_range(shard: ShardComponents, request: Request) -> dict[str, Any]:
    """A digest of the range's documents, for the donor to compare with its own.

    Raises:
        CommandError: CollectionUUIDMismatch, the local collection has another UUID; IndexNotFound.
    """
    namespace = full_namespace(request)
    uuid = Arguments.of(request).uuid(b"collectionUUID")
    pattern = ShardKeyPattern.from_bson(Arguments.of(request).raw(b"shardKeyPattern"))
    wanted = ChunkRange.of(pattern, Arguments.of(request).raw(b"min"), Arguments.of(request).raw(b"max"))
    return (await digest(shard.context.mongod, namespace, uuid, pattern, wanted)).to_document()


async def _recovered(shard: ShardComponents) -> RecipientService:
    """The recipient, once it has recovered the critical sections of former primaries, so that it does not deny them.

    Raises:
        CommandError: NotWritablePrimary.
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
