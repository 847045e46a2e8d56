"""Updates that change a shard key so that the document belongs to another shard.

In a transaction, the shard that has the document executes the update and hands over the result, which the router then
inserts where it belongs (see `sharding.owner_changes`). For a genuine shard, the router itself makes the change, by a
delete and an insert (`replaced_document`). A retryable write does the same in a transaction of the router
(`retryable_write_transaction`).
"""

from typing import Any, Final

from shardwright.router.operations.operation import Operation
from shardwright.router.operations.replaced_document import insert_document, replace_document
from shardwright.router.placement.collection_routing import CollectionRouting
from shardwright.router.replies.shard_reply import ShardReply
from shardwright.router.writes.merge import error_document
from shardwright.sharding.owner_changes import CHANGED_OWNER, MAY_CHANGE_OWNER, OwnerChange, document_of_other_owner
from shardwright.wire.error_codes import Category, has_category
from shardwright.wire.errors import CommandError
from shardwright.wire.rawbson import decode_document, raw_document
from shardwright.wire.read_preference import PRIMARY
from shardwright.wire.transport.request_loop import may_run_in_reactor

CHANGED_OWNER_FIELDS: Final = frozenset({CHANGED_OWNER})


@may_run_in_reactor
async def may_change_owner(operation: Operation, routing: CollectionRouting) -> bool:
    """Whether an update may ask the shards that own a collection to hand over documents that no longer belong to them.

    Raises:
        CommandError: ShardNotFound; FailedToSatisfyReadPreference.
    """
    return operation.transaction is not None and await hand_over(operation, routing)


@may_run_in_reactor
async def hand_over(operation: Operation, routing: CollectionRouting) -> bool:
    """Whether all shards that own a sharded collection hand over documents; genuine ones do not.

    Raises:
        CommandError: ShardNotFound; FailedToSatisfyReadPreference.
    """
    if routing.table is None:
        return False
    understands = operation.context.shards.understands
    for shard in routing.shards:
        if not await understands(shard, MAY_CHANGE_OWNER.decode(), PRIMARY):
            return False
    return True


async def insert_with_new_owner(operation: Operation, reply: ShardReply) -> None:
    """Insert the document that a shard has handed over, if it has, on the shard that owns its new key.

    Raises:
        CommandError: it cannot be inserted.
    """
    document = document_of_other_owner(reply.body, reply.fields) if reply.error is None else None
    if document is not None:
        await insert_document(operation, document)


async def update_by_replacement(operation: Operation, change: OwnerChange) -> dict[str, Any]:
    """The reply to an ``update`` of one document that the router makes by a delete and an insert.

    Raises:
        CommandError: the whole command has failed.
    """
    try:
        count = int(await replace_document(operation, change))
    except CommandError as error:
        failed = failed_update(error)
        if failed is None:
            raise
        return failed
    if not change.is_upsert:
        return {"nModified": count, "n": count}
    return {"nModified": 0, "n": count, "upserted": [{"index": 0, "_id": _id_of(change.after)}]}


async def modify_by_replacement(operation: Operation, change: OwnerChange) -> dict[str, Any]:
    """The reply to a ``findAndModify`` that the router makes by a delete and an insert.

    As in MongoDB, it has whole documents, whatever ``fields`` says.

    Raises:
        CommandError: it has failed.
    """
    is_done = await replace_document(operation, change)
    outcome: dict[str, Any] = {"n": int(is_done), "updatedExisting": is_done and not change.is_upsert}
    if change.is_upsert:
        outcome["upserted"] = _id_of(change.after)
    value = None
    if is_done and operation.argument(b"new", False):
        value = raw_document(change.after)
    elif is_done and not change.is_upsert:
        value = raw_document(change.before)
    return {"lastErrorObject": outcome, "value": value}


def failed_update(error: CommandError) -> dict[str, Any] | None:
    """The reply to an ``update`` whose document could not be inserted; None if the error is that of the whole command.

    Args:
        error: from `insert_with_new_owner`.
    """
    if error.labels or has_category(error.code, Category.RETRYABLE) or has_category(error.code, Category.STALE_ROUTING):
        return None
    return {"n": 0, "nModified": 0, "writeErrors": [raw_document(error_document(error))]}


def _id_of(document: bytes) -> Any:  # noqa: ANN401 - any BSON value
    return decode_document(document)["_id"]
