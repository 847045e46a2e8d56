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
from shardwright.wire.client_metadata import MONGOS_BYTES_MAX, parse_client_metadata
from shardwright.wire.hello import HELLO_NAMES
from shardwright.wire.message import OpMsg, reply
from shardwright.wire.rawbson import append, encode_elements
from shardwright.wire.transport.request_loop import in_own_task, may_run_in_reactor


def under_fail_command(entry: Command, handler: CommandHandler) -> CommandHandler:
    """The handler of a command while a fail point is on.

    Args:
        entry: the command.
        handler: its handler otherwise.
    """

    @may_run_in_reactor
    async def handle(operation: Operation) -> Reply:
        await in_own_task()
        fail_points, call = operation.context.fail_points, _call(entry, operation)
        data = fail_points.should_fail(FAIL_COMMAND, lambda data: fails_before(data, call))
        if data is not None:
            await trio.sleep(block_seconds(data))
            raise_failure(data)
        result = await handler(operation)
        if not entry.supports_write_concern:
            return result
        data = fail_points.should_fail(FAIL_COMMAND, lambda data: fails_after(data, call))
        return result if data is None else _with_fields(operation, result, reply_fields(data))

    return handle


def _call(entry: Command, operation: Operation) -> CommandCall:
    return CommandCall({entry.name, *entry.aliases}, namespace_of(operation.request), _app_name(operation))


def _app_name(operation: Operation) -> str:
    """The name of the client's application, which the first hello itself has.

    Raises:
        CommandError: that hello describes the client in a wrong way.
    """
    metadata, request = operation.client.metadata, operation.request
    if metadata is not None:
        return str(metadata.get("application", {}).get("name", ""))
    span = request.fields.get(b"client") if request.name in HELLO_NAMES else None
    return "" if span is None else parse_client_metadata(request.body, span, bytes_max=MONGOS_BYTES_MAX).app_name


def _with_fields(operation: Operation, result: Reply, fields: dict[str, object]) -> Reply:
    """A reply with these fields added."""
    if isinstance(result, dict):
        return {**result, **fields}
    return None if result is None else reply(operation.response_to, append(OpMsg(result).body, encode_elements(fields)))
