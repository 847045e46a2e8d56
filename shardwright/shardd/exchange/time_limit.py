"""How long a request may take."""

import math

from shardwright.wire.request import Request


def seconds_allowed(request: Request) -> float:
    """How long a request may take by its ``maxTimeMS``; for ever without one."""
    max_time_ms = request.get(b"maxTimeMS")
    return max_time_ms / 1000 if isinstance(max_time_ms, int | float) and max_time_ms > 0 else math.inf
