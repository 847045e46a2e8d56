"""``_configsvrRenameCollectionMetadata``: rename a collection in the catalog, which all shards have renamed."""

from typing import Any
from uuid import UUID

from bson.binary import Binary
from bson.objectid import ObjectId

from shardwright.configd.catalog.collection_chunks import find_collection
from shardwright.configd.catalog.renamed_zones import finish_renames, marked
from shardwright.configd.catalog.transactions import Transaction
from shardwright.configd.commands.command_registry import config_command
from shardwright.configd.commands.operation import Operation
from shardwright.daemon.sidecar.command_sessions import CommandSession, execute_once
from shardwright.sharding.catalog.collection_entry import CollectionEntry
from shardwright.sharding.document_fields import required_uuid
from shardwright.sharding.namespace import Namespace
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError


@config_command("_configsvrRenameCollectionMetadata")
async def rename_collection_metadata(operation: Operation) -> dict[str, Any]:
    """Rename a collection's entry and zones, in place of what has the new name; repeating this changes nothing.

    A command with a session is executed once, so that one which arrives late does not rename a collection that has got
    its old name again since, nor delete zones that have been added since.

    The collection keeps its UUID and its chunks, and gets another epoch and timestamp. When its zones have followed it,
    its migrations, which the coordinator has forbidden, are allowed again. Without ``optFromCollection`` it is not
    sharded: then only what has the new name is removed, and zones of the old name stay, as in MongoDB. ``targetUUID``
    is the UUID of that, if it is sharded.

    Raises:
        CommandError: ConflictingOperationInProgress, another collection has the old or the new name; TransactionTooOld,
            the command comes late.
    """
    source, arguments = str(operation.namespace), operation.arguments
    target = str(Namespace.parse_collection(arguments.string(b"to")))
    uuid = arguments.nested(b"optFromCollection").uuid(b"uuid") if _has(operation, b"optFromCollection") else None
    replaced = arguments.maybe_uuid(b"targetUUID")
    catalog = operation.primary.catalog
    epoch = ObjectId()

    async def work(transaction: Transaction) -> None:
        existing = await find_collection(transaction, target)
        if existing is not None and existing.uuid == uuid:
            return
        _check_is_replaced(existing, replaced)
        document = await transaction.find_one("collections", {"_id": source})
        if uuid is not None and document is not None:
            if required_uuid(document, "uuid") != uuid:
                raise _conflict(source, required_uuid(document, "uuid"))
            incarnation = {"_id": target, "lastmodEpoch": epoch, "timestamp": await catalog.now()}
            transaction.delete("collections", [source])
            transaction.put("collections", [await marked(transaction, {**document, **incarnation}, source)])
        elif existing is not None:
            transaction.delete("collections", [target])

    async def delete_replaced_zones() -> None:
        document = await catalog.find_by_id("collections", target)
        existing = None if document is None else CollectionEntry.from_document(document)
        if existing is None or existing.uuid != uuid:  # otherwise they are those of the source
            _check_is_replaced(existing, replaced)
            await catalog.delete("tags", {"ns": target})

    async def rename() -> None:
        await delete_replaced_zones()
        await catalog.transaction(work)
        await finish_renames(catalog, target)
        if replaced is not None:
            await catalog.delete("chunks", {"uuid": Binary.from_uuid(replaced)})
        await _log(operation, target, is_sharded=uuid is not None)

    async with operation.primary.locks.hold(f"ns:{source}", f"ns:{target}", "zones"):
        await execute_once(catalog.mongod, CommandSession.of(operation.request), rename)
    return {}


async def _log(operation: Operation, target: str, *, is_sharded: bool) -> None:
    """Record the rename as MongoDB does, whose entry is not about a namespace, but what happened to which."""
    done = (
        ": dropped target collection and renamed source collection" if is_sharded else " : dropped target collection."
    )
    entry = await operation.primary.catalog.find_by_id("collections", target) if is_sharded else None
    details = {} if entry is None else {"newCollMetadata": entry}
    what = f"admin.{operation.namespace.collection} to {target}{done}"
    await operation.log_changes("renameCollection.metadata", what, details)


def _has(operation: Operation, field: bytes) -> bool:
    return field in operation.request.fields


def _check_is_replaced(existing: CollectionEntry | None, replaced: UUID | None) -> None:
    if existing is not None and existing.uuid != replaced:
        raise _conflict(str(existing.namespace), existing.uuid)


def _conflict(namespace: str, uuid: UUID) -> CommandError:
    return CommandError(
        ErrorCode.ConflictingOperationInProgress, f"{namespace} is another collection, with UUID {uuid}"
    )
