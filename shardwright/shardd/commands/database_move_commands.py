"""Commands between the donor and the recipient of a database during ``movePrimary``. MongoDB has none of them.

The donor sends the recipient ``_shardsvrMovePrimaryReady``, ``…Receive``, ``…Status``, ``…Finish`` and ``…End``, on the
database. The recipient pulls with ``_shardsvrMovePrimaryClone``, ``…Mods`` and ``_getNextSessionMods``.

The recipient raises NotYetInitialized if it has lost the attempt, for example in a failover, or else the error that
ended the attempt.
"""

from typing import Any, Final
from uuid import UUID

import trio
from bson.binary import Binary

from shardwright.shardd.commands.command import RawReply, ShardComponents
from shardwright.shardd.local_mongod.moved_contents import drop_exactly, drop_views
from shardwright.shardd.migration.active_migrations import migration_session_argument
from shardwright.shardd.migration.database.collection_source import CollectionChanges
from shardwright.shardd.migration.database.database_receipt import Round
from shardwright.shardd.migration.database.database_source import DatabaseSource
from shardwright.shardd.migration.database.moved_collections import MovedCollection
from shardwright.shardd.migration.database.receive_database import ReceiveDatabase
from shardwright.sharding.document_fields import required
from shardwright.sharding.namespace import Namespace
from shardwright.wire import rawbson
from shardwright.wire.arguments import Arguments
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.rawbson import array_of_documents, encode_document, encode_elements
from shardwright.wire.request import Request

READY_SECONDS_MAX: Final = 60.0


async def ready(shard: ShardComponents, request: Request) -> dict[str, Any]:
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


async def receive(shard: ShardComponents, request: Request) -> dict[str, Any]:
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


async def status(shard: ShardComponents, request: Request) -> dict[str, Any]:
    """Report the progress once it is steady or a second has passed, or the error that ended the attempt."""
    receipt = shard.migrations.databases.receipt(request.db, Arguments.of(request).uuid(b"moveId"))
    await receipt.wait_steady()
    return receipt.report()


async def finish(shard: ShardComponents, request: Request) -> dict[str, Any]:
    """Apply the last changes while the donor blocks writes.

    The cluster time advances first, so that later writes here have later times than the donor's.
    """
    receipt = shard.migrations.databases.receipt(request.db, Arguments.of(request).uuid(b"moveId"))
    await shard.context.advance_cluster_time(Arguments.of(request).required_value(b"after"))
    await receipt.finish(int(Arguments.of(request).required_value(b"round")))
    return receipt.report()


async def end(shard: ShardComponents, request: Request) -> dict[str, Any]:
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


async def clone(shard: ShardComponents, request: Request) -> RawReply:
    """Return a batch of a collection's documents as ``objects``; an empty one ends the clone.

    ``busy`` is as in `migration_commands`.

    Raises:
        CommandError: NotYetInitialized, the session is unknown; NamespaceNotFound, the collection is gone; BadValue,
            the batch number is out of turn.
    """
    source = _source(shard, request)
    objects = await source.clone_batch(Arguments.of(request).uuid(b"collectionUUID"), _number(request))
    busy = {"busy": True} if shard.migrations.client_load.is_heavy else {}
    return RawReply((b"\x04objects\0", objects, encode_elements(busy)))


async def mods(shard: ShardComponents, request: Request) -> RawReply:
    """Return changes to ``collections``, each with its UUID. Errors are as for `clone`.

    ``queued`` is the number of changed documents that remain for later batches.
    """
    source = _source(shard, request)
    changes = await source.next_mods(_number(request))
    return RawReply(
        (
            *(b"\x04collections\0", array_of_documents(list(map(_encoded, changes)))),
            encode_elements({"queued": source.queued_ids}),
        )
    )


def _source(shard: ShardComponents, request: Request) -> DatabaseSource:
    source = shard.migrations.databases.source(migration_session_argument(request))
    if source is None:
        raise CommandError(ErrorCode.NotYetInitialized, "No active move of a database was found")
    return source


def _number(request: Request) -> int:
    return int(Arguments.of(request).required_value(b"number"))


def _encoded(changes: CollectionChanges) -> bytes:
    deleted, reload = (
        rawbson.element(name, rawbson.ARRAY, array_of_documents(documents))
        for name, documents in ((b"deleted", changes.deleted), (b"reload", changes.reload))
    )
    return rawbson.append(encode_document({"uuid": Binary.from_uuid(changes.uuid)}), deleted + reload)


def _collections(documents: list[dict[str, Any]]) -> list[tuple[Namespace, UUID]]:
    return [(Namespace.parse(each["ns"]), UUID(bytes=bytes(each["uuid"]))) for each in documents]
