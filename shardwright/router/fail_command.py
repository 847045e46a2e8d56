"""The fail point ``failCommand`` around the commands of a router."""

import trio

from shardwright.daemon.fail_command import (
    FAIL_COMMAND,
    CommandCall,
    block_seconds,
    fails_after,
    fails_before,
    raise_failure,
    reply_fields,
)
from shardwright.daemon.namespaces import namespace_of
from shardwright.router.commands.command_registry import Command, CommandHandler
from shardwright.router.operations.operation import Operation
from shardwright.router.replies.own_reply import Reply
from shardwright.wire.message import OpMsg, reply
from shardwright.wire.rawbson import append, encode_elements
from shardwright.wire.transport.request_loop import in_own_task, may_run_in_reactor


def under_fail_command(entry: Command) -> CommandHandler:
    """The handler of a command while a fail point is on."""

    @may_run_in_reactor
    async def handler(operation: Operation) -> Reply:
        await in_own_task()
        fail_points, call = operation.context.fail_points, _call(entry, operation)
        data = fail_points.should_fail(FAIL_COMMAND, lambda data: fails_before(data, call))
        if data is not None:
            await trio.sleep(block_seconds(data))
            raise_failure(data)
        result = await entry.handler(operation)
        if not entry.supports_write_concern:
            return result
        data = fail_points.should_fail(FAIL_COMMAND, lambda data: fails_after(data, call))
        return result if data is None else _with_fields(operation, result, reply_fields(data))

    return handler


def _call(entry: Command, operation: Operation) -> CommandCall:
    metadata = operation.client.metadata or {}
    app_name = metadata.get("application", {}).get("name", "")
    return CommandCall({entry.name, *entry.aliases}, namespace_of(operation.request), app_name)


def _with_fields(operation: Operation, result: Reply, fields: dict[str, object]) -> Reply:
    """A reply with these fields added."""
    if isinstance(result, dict):
        return {**result, **fields}
    return None if result is None else reply(operation.response_to, append(OpMsg(result).body, encode_elements(fields)))
