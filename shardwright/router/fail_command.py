"""The fail point ``failCommand`` in a router."""

from collections.abc import Mapping
from typing import Any

from shardwright.daemon.fail_command import FAIL_COMMAND, fails_after, reply_with_error
from shardwright.router.operations.failing_calls import call_of, fail_if_asked
from shardwright.router.operations.operation import Operation
from shardwright.router.operations.router_command import CommandHandler, RouterCommand
from shardwright.router.replies.reply_builder import Reply
from shardwright.wire.message import OpMsg, reply
from shardwright.wire.rawbson import decode_document, encode_document
from shardwright.wire.transport.request_loop import in_own_task, may_run_in_reactor


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
