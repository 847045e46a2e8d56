"""The cost of access control and TLS for a whole cluster: point finds and log-ins with and without them.

An open, a closed and a secured cluster take turns (`bench.turns`). The printed numbers are medians over the turns, and
ratios to the open cluster in the same turn. Every reply is checked. The router's share alone is in `bench.access` and
`bench.tls`.
"""

import os
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from bench.turns import Contender, Cost, LoopClient, cluster_of_points, take_turns

OPEN: Final = "open"
CLOSED: Final = "closed"
SECURED: Final = "closed, with TLS"

_OPTIONS: Final[dict[str, tuple[str, ...]]] = {OPEN: (), CLOSED: ("--auth",), SECURED: ("--auth", "--tls")}
_FIND: Final = "point find"
_FIND_IN_SESSION: Final = "point find in a session"
_LOG_IN: Final = "log-in"


def measure_closed(
    mongod: str, directory: Path, *, rounds: int, seconds: float, cache_gb: float
) -> list[dict[str, Any]]:
    """Measure the three kinds of clusters in turn, and print the results."""
    print("\nan open cluster, a closed one, and one with TLS, on one connection", flush=True)
    results = []
    with ExitStack() as running:
        clients = {}
        for number, (name, options) in enumerate(_OPTIONS.items()):
            starting = cluster_of_points(mongod, directory / f"closed{number}", cache_gb=cache_gb, options=options)
            _, clients[name] = running.enter_context(starting)
        for what in (_FIND, _FIND_IN_SESSION, _LOG_IN):
            measured = {name: each for name, each in clients.items() if what != _LOG_IN or each.user is not None}
            contenders = {name: Contender(each.target, _step(each, what)) for name, each in measured.items()}
            slices = take_turns(contenders, rounds * seconds)
            for name in measured:
                beside = [] if name == OPEN else slices.get(OPEN, [])
                cost = Cost.of(name, what, slices[name], beside)
                results.append(cost)
                print(f"  {cost.line(OPEN)}", flush=True)
            print(f"  load of the machine: {os.getloadavg()[0]:.1f}", flush=True)
    return [asdict(result) for result in results]


def _step(client: LoopClient, what: str) -> Callable[[], None]:
    return client.log_in_again if what == _LOG_IN else client.finding(in_session=what == _FIND_IN_SESSION)
