"""``configureFailPoint``, which routers have if test commands are enabled, and ``waitForFailPoint``."""

from collections.abc import Awaitable, Callable
from functools import partial

import trio

from shardwright.daemon.fail_point_arguments import FailPointWait, parse_configuration, parse_wait
from shardwright.router.commands.command_registry import command
from shardwright.router.operations.operation import Operation
from shardwright.router.processes.siblings import is_from_sibling, send_to_sibling, sibling_indexes, tell_siblings
from shardwright.router.replies.own_reply import Reply
from shardwright.wire.errors import BackendError, CommandError


@command("configureFailPoint", admin_only=True, test_only=True)
async def configure_fail_point(operation: Operation) -> Reply:
    """Turns a fail point on or off, in all processes of this router."""
    context, request = operation.context, operation.request
    wanted = parse_configuration(request, context.fail_points.check_name)
    if not is_from_sibling(request):
        context.shared_counts.reset(wanted.name)
    count = context.fail_points.configure(wanted.name, wanted.mode, wanted.data)
    passed_on = {"configureFailPoint": wanted.name, "mode": wanted.mode, "data": wanted.data}
    replies = await tell_siblings(context, request, passed_on) or []
    return {"count": count + sum(int(reply["count"]) for reply in replies)}


@command("waitForFailPoint", admin_only=True, reads=True)
async def wait_for_fail_point(operation: Operation) -> Reply:
    """Returns when a fail point has been entered a number of times, by all processes of this router together."""
    context, wait = operation.context, parse_wait(operation.request)
    if is_from_sibling(operation.request):
        return {"entered": await context.fail_points.wait_entered(wait.name, wait.times)}
    await context.fail_points.wait_entered(wait.name, 0)  # fails for a name that is unknown
    entered: dict[int, int] = {}
    async with trio.open_nursery() as nursery:

        async def count_in(process: int, wait_more: Callable[[int], Awaitable[int]]) -> None:
            """Count in one process; ``wait_more`` returns its number as soon as that is no smaller than asked for."""
            entered[process] = await wait_more(0)
            while sum(entered.values()) < wait.times:
                entered[process] = await wait_more(entered[process] + 1)
            nursery.cancel_scope.cancel()

        async def wait_here(times: int) -> int:
            return await context.fail_points.wait_entered(wait.name, times)

        nursery.start_soon(count_in, context.options.worker_index, wait_here)
        for index in sibling_indexes(context):
            nursery.start_soon(count_in, index, partial(_wait_in_sibling, operation, wait, index))
    return {}


async def _wait_in_sibling(operation: Operation, wait: FailPointWait, index: int, times: int) -> int:
    command = {"waitForFailPoint": wait.name, "timesEntered": times, "maxTimeMS": wait.max_time_ms}
    try:
        reply = await send_to_sibling(operation.context, index, "admin", command)
    except (BackendError, CommandError):  # it has crashed, or the time is up there a moment earlier than here
        await trio.sleep_forever()
    return int(reply["entered"])
