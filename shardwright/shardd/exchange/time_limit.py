"""The time limit of a request."""

import math

from shardwright.wire.request import Request


def seconds_allowed(request: Request) -> float:
    """Return the time limit in seconds from ``maxTimeMS``; infinite without one."""
    max_time_ms = request.get(b"maxTimeMS")
    return max_time_ms / 1000 if isinstance(max_time_ms, int | float) and max_time_ms > 0 else math.inf
