"""The fail point ``failCommand``: commands wait or fail before they start, or get a write concern error afterwards."""

from collections.abc import Collection, Mapping
from typing import Any

import trio

from shardwright.daemon.command_table import namespace_of
from shardwright.daemon.fail_command import (
    FAIL_COMMAND,
    CommandCall,
    block_seconds,
    fails_after,
    fails_before,
    raise_failure,
    reply_with_error,
)
from shardwright.router.operations.operation import CommandHandler, Operation, RouterCommand
from shardwright.router.replies.reply_builder import Reply
from shardwright.wire.hello import HELLO_NAMES, MONGOS_BYTES_MAX, parse_client_metadata
from shardwright.wire.message import OpMsg, reply
from shardwright.wire.rawbson import decode_document, encode_document
from shardwright.wire.transport.reactor import in_own_task, may_run_in_reactor


def call_of(operation: Operation, names: Collection[str]) -> CommandCall:
    """Return the properties of a command that the fail point can select.

    Raises:
        CommandError: a first hello has malformed client metadata.
    """
    namespace, thread_name = namespace_of(operation.request), f"conn{operation.client.id}"
    return CommandCall(set(names), namespace, _app_name(operation), thread_name)


async def fail_if_asked(operation: Operation, call: CommandCall) -> None:
    """Wait or fail, if the fail point is on for this command.

    Raises:
        CommandError: the fail point's error, which may also close the connection.
    """
    data = operation.context.fail_points.should_fail(FAIL_COMMAND, lambda data: fails_before(data, call))
    if data is not None:
        await trio.sleep(block_seconds(data))
        raise_failure(data)


def _app_name(operation: Operation) -> str:
    """Return the name of the client's application; a first hello itself contains it."""
    client, request = operation.client, operation.request
    if client.metadata is not None:
        return client.app_name
    span = request.fields.get(b"client") if request.name in HELLO_NAMES else None
    return "" if span is None else parse_client_metadata(request.body, span, bytes_max=MONGOS_BYTES_MAX).app_name


@may_run_in_reactor
async def fail_before(operation: Operation, command: RouterCommand) -> None:
    """Wait or fail before a command does anything, if the fail point says so.

    Raises:
        CommandError: the error of the fail point, which may also be to close the connection.
    """
    await in_own_task()
    await fail_if_asked(operation, call_of(operation, command.names))


def failing_afterwards(command: RouterCommand, handler: CommandHandler) -> CommandHandler:
    """Wrap the handler of a command, to add a write concern error to its reply if the fail point says so."""

    @may_run_in_reactor
    async def handle(operation: Operation) -> Reply:
        result = await handler(operation)
        call = call_of(operation, command.names)
        data = operation.context.fail_points.should_fail(FAIL_COMMAND, lambda data: fails_after(data, call))
        return result if data is None else _failed(operation, result, data)

    return handle


def _failed(operation: Operation, result: Reply, data: Mapping[str, Any]) -> Reply:
    """Add the fail point's write concern error to a reply."""
    if result is None:
        return None
    if isinstance(result, dict):
        return decode_document(reply_with_error(data, encode_document({"ok": 1.0, **result})))
    return reply(operation.response_to, reply_with_error(data, OpMsg(result).body))
