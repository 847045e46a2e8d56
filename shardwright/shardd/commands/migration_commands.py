"""Migration commands: of a range, and of a database during ``movePrimary``.

**Ranges.** They are sent from the config servers to the donor, between donor and recipient, and for session migration.

**Databases.** MongoDB has none of these commands. The donor sends the recipient ``_shardsvrMovePrimaryReady``,
``…Receive``, ``…Status``, ``…Finish`` and ``…End``, on the database. The recipient pulls with
``_shardsvrMovePrimaryClone``, ``…Mods`` and ``_getNextSessionMods``.

The recipient raises NotYetInitialized if it has lost the attempt, for example in a failover, or else the error that
ended the attempt.
"""

from collections.abc import Mapping
from typing import Any, Final
from uuid import UUID

import trio
from bson.binary import Binary
from bson.int64 import Int64

from shardwright.shardd.commands.command import RawReply, ShardComponents
from shardwright.shardd.context.fail_point_names import LOSE_MIGRATE_CLONE_REPLY, LOSE_TRANSFER_MODS_REPLY
from shardwright.shardd.local_mongod.moved_contents import drop_exactly, drop_views
from shardwright.shardd.migration.active_migrations import ABORTED, COMMITTED, migration_session_argument
from shardwright.shardd.migration.donor.clone_source import CloneSource
from shardwright.shardd.migration.donor.database_source import CollectionChanges, DatabaseSource
from shardwright.shardd.migration.donor.move_range import MoveRangeRequest
from shardwright.shardd.migration.donor.range_documents import digest
from shardwright.shardd.migration.moved_database import MovedCollection, ReceiveDatabase
from shardwright.shardd.migration.recipient.database_receipt import Round
from shardwright.shardd.migration.recipient.recipient_service import not_steady
from shardwright.shardd.migration.recipient.recv_chunk import ReceiveRequest
from shardwright.sharding.chunks import ChunkRange
from shardwright.sharding.document_fields import required
from shardwright.sharding.namespace import Namespace, full_namespace
from shardwright.sharding.shard_key import ShardKeyPattern
from shardwright.wire import rawbson
from shardwright.wire.arguments import Arguments
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError, ConnectionClosedError
from shardwright.wire.rawbson import ARRAY, array_of_documents, element, encode_document, encode_elements
from shardwright.wire.request import Request

READY_SECONDS_MAX: Final = 60.0


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
    return await shard.migrations.recipient.start(ReceiveRequest.from_request(request))


async def recv_chunk_status(shard: ShardComponents, request: Request) -> dict[str, Any]:
    """Report the progress of the active or last migration to this shard."""
    status = shard.migrations.recipient.status
    if not Arguments.of(request).boolean(b"waitForSteadyOrDone", False):
        return status.report()
    await status.wait_steady_or_done()
    return {"waited": True, **status.report()}


async def recv_chunk_commit(shard: ShardComponents, request: Request) -> dict[str, Any]:
    """Apply the last modifications, and enter the critical section until the donor reports the decision.

    Raises CommandFailed if the migration is not steady or cannot be completed.
    """
    session_id = migration_session_argument(request)
    recipient = shard.migrations.recipient
    migration = recipient.of_session(session_id)
    if migration is None:
        raise not_steady(session_id, recipient.active)
    await migration.commit()
    return migration.status.report()


async def recv_chunk_release_critical_section(shard: ShardComponents, request: Request) -> dict[str, Any]:
    """Leave the critical section after the decision. Needs majority write concern. The request may be repeated."""
    session_id = migration_session_argument(request)
    _require_majority(request)
    migration = shard.migrations.recipient.of_session(session_id)
    if migration is not None:
        await migration.release()
    return {}


async def recv_chunk_abort(shard: ShardComponents, request: Request) -> dict[str, Any]:
    """Abort a migration, unless its critical section has begun. The request may be repeated."""
    session_id = migration_session_argument(request)
    recipient = shard.migrations.recipient
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
    await shard.migrations.recipient.finish(migration_id, decision)
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


async def move_primary_ready(shard: ShardComponents, request: Request) -> dict[str, Any]:
    """Wait until this shard, possibly a former primary shard, has dropped its old collections of the database.

    Raises ConflictingOperationInProgress if collections remain after `READY_SECONDS_MAX`.
    """
    with trio.move_on_after(READY_SECONDS_MAX):
        await shard.coordinators.wait_database_released(request.db)
        return {}
    raise CommandError(
        ErrorCode.ConflictingOperationInProgress,
        f"shard {shard.context.require_identity().shard_name} is still dropping its former collections of {request.db}",
    )


async def move_primary_receive(shard: ShardComponents, request: Request) -> dict[str, Any]:
    """Begin to receive a database, or a further round of collections. The request may be repeated.

    Raises:
        CommandError: ConflictingOperationInProgress, another attempt is in progress; NotYetInitialized, the earlier
            rounds were lost, for example in a failover.
    """
    document = request.document
    wanted = Round(
        number=required(document, "round", int),
        collections=[MovedCollection.from_document(each) for each in document["collections"]],
        gone=_collections(document["gone"]),
        views=request.documents(b"views"),
    )
    me = shard.context.require_identity().shard_name
    shard.migrations.databases.receive(ReceiveDatabase.from_document(request.db, document, me), wanted)
    return {}


async def move_primary_status(shard: ShardComponents, request: Request) -> dict[str, Any]:
    """Report the progress once it is steady or a second has passed, or the error that ended the attempt."""
    receipt = shard.migrations.databases.receipt(request.db, Arguments.of(request).uuid(b"moveId"))
    await receipt.wait_steady()
    return receipt.report()


async def move_primary_finish(shard: ShardComponents, request: Request) -> dict[str, Any]:
    """Apply the last changes while the donor blocks writes.

    The cluster time advances first, so that later writes here have later times than the donor's.
    """
    receipt = shard.migrations.databases.receipt(request.db, Arguments.of(request).uuid(b"moveId"))
    await shard.context.advance_cluster_time(Arguments.of(request).required_value(b"after"))
    await receipt.finish(int(Arguments.of(request).required_value(b"round")))
    return receipt.report()


async def move_primary_end(shard: ShardComponents, request: Request) -> dict[str, Any]:
    """End an attempt and drop the given copies and views."""
    document = request.document
    await shard.migrations.databases.end(request.db, Arguments.of(request).uuid(b"moveId"))
    await drop_exactly(shard.context.mongod, _collections(document["dropped"]))
    dropped_views = document["droppedViews"]
    if dropped_views:  # after a move this is the primary shard, where clients may be creating the first view
        await drop_views(shard.context.mongod, request.db, dropped_views)
    shard.context.views.forget()
    shard.context.forget_database(request.db)
    return {}


async def move_primary_clone(shard: ShardComponents, request: Request) -> RawReply:
    """Return a batch of a collection's documents as ``objects``; an empty one ends the clone.

    ``busy`` is as in `migration_commands`.

    Raises:
        CommandError: NotYetInitialized, the session is unknown; NamespaceNotFound, the collection is gone; BadValue,
            the batch number is out of turn.
    """
    source = _source_of_database(shard, request)
    objects = await source.clone_batch(Arguments.of(request).uuid(b"collectionUUID"), _number_of_batch(request))
    busy = {"busy": True} if shard.migrations.client_load.is_heavy else {}
    return RawReply((b"\x04objects\0", objects, encode_elements(busy)))


async def move_primary_mods(shard: ShardComponents, request: Request) -> RawReply:
    """Return changes to ``collections``, each with its UUID. Errors are as for `clone`.

    ``queued`` is the number of changed documents that remain for later batches.
    """
    source = _source_of_database(shard, request)
    changes = await source.next_mods(_number_of_batch(request))
    return RawReply(
        (
            *(b"\x04collections\0", array_of_documents(list(map(_encoded, changes)))),
            encode_elements({"queued": source.queued_ids}),
        )
    )


def _source_of_database(shard: ShardComponents, request: Request) -> DatabaseSource:
    source = shard.migrations.databases.source(migration_session_argument(request))
    if source is None:
        raise CommandError(ErrorCode.NotYetInitialized, "No active move of a database was found")
    return source


def _number_of_batch(request: Request) -> int:
    return int(Arguments.of(request).required_value(b"number"))


def _encoded(changes: CollectionChanges) -> bytes:
    deleted, reload = (
        rawbson.element(name, rawbson.ARRAY, array_of_documents(documents))
        for name, documents in ((b"deleted", changes.deleted), (b"reload", changes.reload))
    )
    return rawbson.append(encode_document({"uuid": Binary.from_uuid(changes.uuid)}), deleted + reload)


def _collections(documents: list[dict[str, Any]]) -> list[tuple[Namespace, UUID]]:
    return [(Namespace.parse(each["ns"]), UUID(bytes=bytes(each["uuid"]))) for each in documents]
