"""``validate`` and ``validateDBMetadata``."""

from typing import Any

from shardwright.router.commands.command_registry import command
from shardwright.router.ddl.validation import merge_validation
from shardwright.router.operations.operation import Operation
from shardwright.router.operations.routed_sending import read_all_shards, send_to_owning_shards
from shardwright.router.replies.own_reply import Reply
from shardwright.router.replies.worst_error import raise_worst


@command("validate", reads=True)
async def validate(operation: Operation) -> Reply:
    """Validates data and indexes of a collection on all shards that own a part of it."""
    _, replies = await send_to_owning_shards(
        operation, operation.namespace, preference=operation.read_preference, may_repeat=True
    )
    return merge_validation(replies)


@command("validateDBMetadata", reads=True)
async def validate_db_metadata(operation: Operation) -> Reply:
    """Reports collections and views that use features outside a version of the Stable API."""
    replies = await read_all_shards(operation)
    raise_worst(replies)
    reply: dict[str, Any] = {"apiVersionErrors": [error for each in replies for error in each.get(b"apiVersionErrors")]}
    if any(each.get(b"hasMoreErrors", False) for each in replies):
        reply["hasMoreErrors"] = True
    return reply
