"""``refineCollectionShardKey``: adding fields to the end of a collection's shard key."""

from typing import Final

from shardwright.router.commands.command_registry import command
from shardwright.router.ddl.coordinated import command_body
from shardwright.router.operations.operation import Operation
from shardwright.router.operations.routed_sending import send_to_primary_shard
from shardwright.router.replies.own_reply import Reply
from shardwright.sharding.arguments import full_namespace
from shardwright.sharding.shard_key import refuse_repeated_fields
from shardwright.wire.arguments import Arguments
from shardwright.wire.rawbson import raw_document

_OPTIONS: Final = (b"collectionUUID", b"enforceUniquenessCheck")


@command("refineCollectionShardKey", admin_only=True, supports_write_concern=True)
async def refine_collection_shard_key(operation: Operation) -> Reply:
    """Adds fields to the end of a collection's shard key; no document moves."""
    request = operation.request
    namespace = full_namespace(request)
    refuse_repeated_fields(key := Arguments.of(request).raw(b"key"))
    refinement = {
        "_shardsvrRefineCollectionShardKey": namespace.collection,
        "newShardKey": raw_document(key),
        **Arguments.of(request).present(*_OPTIONS),
    }
    try:
        await send_to_primary_shard(operation, namespace.db, command_body(namespace.db, refinement))
    finally:
        operation.context.routing.forget_collection(str(namespace))
    return {}
