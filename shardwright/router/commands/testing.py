"""Commands for tests: fail points, the versions of the Stable API, marks in the log, hashes of values.

Routers have them only if test commands are enabled.
"""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

import trio
from bson.int64 import Int64

from shardwright.daemon.fail_points import FailPointWait, parse_configuration, parse_wait
from shardwright.router.operations.operation import CommandHandler, Operation
from shardwright.router.processes.siblings import is_from_sibling, send_to_sibling, sibling_indexes, tell_siblings
from shardwright.router.replies.reply_builder import PlainError, Reply
from shardwright.sharding.hashing import hash_value
from shardwright.wire.arguments import Arguments, clamp_int64
from shardwright.wire.errors import BackendError, CommandError
from shardwright.wire.logger import get_logger


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


async def wait_for_fail_point(operation: Operation) -> Reply:
    """Returns when a fail point has been entered a number of times, by all processes of this router together."""
    context, wait = operation.context, parse_wait(operation.request)
    if is_from_sibling(operation.request):
        return {"entered": await context.fail_points.wait_entered(wait.name, wait.times)}
    await context.fail_points.wait_entered(wait.name, 0)  # fails for an unknown name
    entered: dict[int, int] = {}
    async with trio.open_nursery() as nursery:

        async def count_in(process: int, wait_more: Callable[[int], Awaitable[int]]) -> None:
            """Count in one process; ``wait_more`` returns its number once it has reached the requested one."""
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
    except (BackendError, CommandError):  # it has crashed, or its time limit has expired a moment before ours
        await trio.sleep_forever()
    return int(reply["entered"])


def succeeding(summary: str) -> CommandHandler:
    """A handler that does nothing, with this line as its help."""

    async def succeed(operation: Operation) -> Reply:
        return {}

    succeed.__doc__ = summary
    return succeed


logger = get_logger("router.commands")


async def log_message(operation: Operation) -> Reply:
    """Writes a line into the log of the process of this connection."""
    arguments = Arguments.of(operation.request, "logMessage")
    message, severity = arguments.string(b"logMessage"), arguments.maybe_string(b"severity")
    extra = arguments.maybe_nested(b"extra")
    fields = {} if extra is None else arguments.value(b"extra")
    log = {"warning": logger.warning, "error": logger.error}.get(severity or "", logger.info)
    log("logMessage", text=message, extra=fields)
    return {}


_INT32_MAX: Final = (1 << 31) - 1
_INT32_MIN: Final = -(1 << 31)


async def hash_bson_element(operation: Operation) -> Reply:
    """Returns the hash of a value."""
    request = operation.request
    seed = request.get(b"seed", 0)
    if isinstance(seed, bool) or not isinstance(seed, int | float):
        raise _NotSeededError(request.get(b"_hashBSONElement"))
    seed = max(_INT32_MIN, min(_INT32_MAX, clamp_int64(seed)))
    hashed = hash_value(request.body, request.fields[b"_hashBSONElement"], seed)
    return {"key": request.get(b"_hashBSONElement"), "seed": seed, "out": Int64(hashed)}


class _NotSeededError(PlainError):
    """The seed is not a number. The reply has the value nevertheless."""

    def __init__(self, value: object) -> None:
        super().__init__("seed must be a number")
        self._value = value

    def reply(self) -> dict[str, object]:
        """Return the body of the reply."""
        return {"key": self._value, **super().reply()}
