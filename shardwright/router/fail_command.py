"""The fail point ``failCommand`` around the commands of a router."""

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


def under_fail_command(entry: RouterCommand, handler: CommandHandler) -> CommandHandler:
    """The handler of a command while a fail point is on.

    Args:
        entry: the command.
        handler: its handler otherwise.
    """

    @may_run_in_reactor
    async def handle(operation: Operation) -> Reply:
        await in_own_task()
        fail_points, call = operation.context.fail_points, call_of(operation, (entry.name, *entry.aliases))
        await fail_if_asked(operation, call)
        result = await handler(operation)
        if not entry.supports_write_concern:
            return result
        data = fail_points.should_fail(FAIL_COMMAND, lambda data: fails_after(data, call))
        return result if data is None else _failed(operation, result, data)

    return handle


def _failed(operation: Operation, result: Reply, data: Mapping[str, Any]) -> Reply:
    """A reply with the write concern error of the fail point."""
    if result is None:
        return None
    if isinstance(result, dict):
        return decode_document(reply_with_error(data, encode_document({"ok": 1.0, **result})))
    return reply(operation.response_to, reply_with_error(data, OpMsg(result).body))
