"""``configureFailPoint``, which routers have if test commands are enabled, and ``waitForFailPoint``."""

from shardwright.daemon.fail_point_arguments import parse_configuration, parse_wait
from shardwright.router.commands.command_registry import command
from shardwright.router.operations.operation import Operation
from shardwright.router.processes.siblings import is_from_sibling, send_to_siblings
from shardwright.router.replies.own_reply import Reply


@command("configureFailPoint", admin_only=True, test_only=True)
async def configure_fail_point(operation: Operation) -> Reply:
    """Turns a fail point on or off, in all processes of this router."""
    context, request = operation.context, operation.request
    wanted = parse_configuration(request)
    if is_from_sibling(request):
        return {"count": context.fail_points.configure(wanted.name, wanted.mode, wanted.data)}
    if wanted.name in context.fail_points.names:
        context.shared_counts.reset(wanted.name)
    count = context.fail_points.configure(wanted.name, wanted.mode, wanted.data)
    passed_on = {"configureFailPoint": wanted.name, "mode": wanted.mode, "data": wanted.data}
    replies = await send_to_siblings(context, request.db, passed_on)
    return {"count": count + sum(int(reply["count"]) for reply in replies)}


@command("waitForFailPoint", admin_only=True, reads=True)
async def wait_for_fail_point(operation: Operation) -> Reply:
    """Returns when this process has entered a fail point a number of times."""
    wait = parse_wait(operation.request)
    await operation.context.fail_points.wait_entered(wait.name, wait.times)
    return {}
