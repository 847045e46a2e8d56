"""``configureFailPoint`` and ``waitForFailPoint`` for the daemon's own fail points; its mongod serves all others.

They also run on secondaries: a fail point can be turned off after its daemon has stepped down.
"""

from typing import Any, Final

import trio

from shardwright.daemon.fail_points import FailPoints, parse_configuration, parse_wait
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.rawbson import is_string
from shardwright.wire.request import Request

_CONFIGURE: Final = "configureFailPoint"
_COMMANDS: Final = (_CONFIGURE, "waitForFailPoint")


def is_about(fail_points: FailPoints, request: Request) -> bool:
    """Whether a request is about one of the daemon's fail points."""
    if request.name not in _COMMANDS:
        return False
    name = request.get(request.name.encode())
    return is_string(name) and name in fail_points.names


async def run(fail_points: FailPoints, request: Request) -> dict[str, Any]:
    """Run one of the two commands and return its reply; as in MongoDB, ``waitForFailPoint`` requires ``maxTimeMS``.

    Raises:
        CommandError: Unauthorized, it was not sent to the admin database; IllegalOperation, TypeMismatch, BadValue or
            40414, an argument is missing or wrong; MaxTimeMSExpired.
    """
    if request.db != "admin":
        raise CommandError(ErrorCode.Unauthorized, f"{request.name} may only be run against the admin database.")
    if request.name == _CONFIGURE:
        wanted = parse_configuration(request)
        return {"count": fail_points.configure(wanted.name, wanted.mode, wanted.data), "ok": 1.0}
    wait = parse_wait(request)
    try:
        with trio.fail_after(wait.max_time_ms / 1000):
            await fail_points.wait_entered(wait.name, wait.times)
    except trio.TooSlowError:
        raise CommandError(ErrorCode.MaxTimeMSExpired, "operation exceeded time limit") from None
    return {"ok": 1.0}
