"""``drop``: collections, sharded or not, and views."""

from typing import Final

from bson.binary import Binary

from shardwright.router.commands.command_registry import command
from shardwright.router.ddl.coordinated import command_body
from shardwright.router.operations.operation import Operation
from shardwright.router.operations.routed_sending import send_to_primary_shard
from shardwright.router.operations.uuid_mismatch import COLLECTION_UUID
from shardwright.router.replies.own_reply import Reply
from shardwright.router.replies.reply_fields import answer_of
from shardwright.wire.arguments import Arguments
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError

TEMPORARY_COLLECTIONS: Final = frozenset({"admin.tempusers", "admin.temproles"})
"""Collections of mongorestore for users and roles, which it drops before and after ``_mergeAuthzCollections``.

A mongos refuses the drop, so users can be restored through it only once.
"""


@command("drop", api_versions=("1",), supports_write_concern=True, arguments=("collectionUUID",))
async def drop(operation: Operation) -> Reply:
    """Drops a collection wherever it is; one that does not exist is fine."""
    namespace, request = operation.namespace, operation.request
    Arguments.of(request).refuse_unknown({b"drop", b"collectionUUID"})
    if namespace in TEMPORARY_COLLECTIONS:
        return (await send_to_primary_shard(operation, request.db, may_repeat=True)).for_client()
    if request.db in ("config", "admin"):
        raise CommandError(
            ErrorCode.IllegalOperation, f"Cannot drop collection in '{request.db}' database in sharded cluster"
        )
    expected = Arguments.of(request).maybe_uuid(COLLECTION_UUID)
    uuid = {} if expected is None else {"collectionUUID": Binary.from_uuid(expected)}
    body = command_body(request.db, {"_shardsvrDropCollection": request.collection, **uuid})
    try:
        return answer_of(await send_to_primary_shard(operation, request.db, body, may_repeat=True))
    except CommandError as error:
        if error.code != ErrorCode.NamespaceNotFound:
            raise
        return {"info": "database does not exist"}
    finally:
        operation.context.routing.forget_collection(namespace)
