"""The fail point ``failCommand`` around the commands of a router."""

from shardwright.daemon.fail_command import FAIL_COMMAND, fails_after, reply_fields
from shardwright.router.commands.command_registry import Command, CommandHandler
from shardwright.router.operations.failing_calls import call_of, fail_if_asked
from shardwright.router.operations.operation import Operation
from shardwright.router.replies.own_reply import Reply
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
        fail_points, call = operation.context.fail_points, call_of(operation, (entry.name, *entry.aliases))
        await fail_if_asked(operation, call)
        result = await handler(operation)
        if not entry.supports_write_concern:
            return result
        data = fail_points.should_fail(FAIL_COMMAND, lambda data: fails_after(data, call))
        return result if data is None else _with_fields(operation, result, reply_fields(data))

    return handle


def _with_fields(operation: Operation, result: Reply, fields: dict[str, object]) -> Reply:
    """A reply with these fields added."""
    if isinstance(result, dict):
        return {**result, **fields}
    return None if result is None else reply(operation.response_to, append(OpMsg(result).body, encode_elements(fields)))
