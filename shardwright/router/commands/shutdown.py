"""``shutdown``."""

from shardwright.router.commands.command_registry import command
from shardwright.router.operations.operation import Operation
from shardwright.router.processes.workers import end_router
from shardwright.router.replies.own_reply import Reply
from shardwright.wire.arguments import Arguments, Strictness


@command("shutdown", admin_only=True)
async def shutdown(operation: Operation) -> Reply:
    """Shuts this router down; there is no reply, and timeoutSecs is how long running operations may continue."""
    arguments = Arguments.of(operation.request)
    arguments.refuse_unknown((b"shutdown", b"force", b"timeoutSecs"))
    arguments.boolean(b"force", strictness=Strictness.BOOL)
    seconds = arguments.maybe_integer(b"timeoutSecs")
    if seconds is not None:
        operation.context.shutdown_seconds_wanted = float(seconds)
    operation.client.is_finished = True
    end_router(operation.context.options)
    return None
