"""Which of the router's loggers belong to which of MongoDB's log components, and how much they log.

A component with a verbosity above 0 has its loggers write debug lines. One that inherits its verbosity has that of the
component above it, whose loggers need not be above its own.
"""

from collections.abc import Mapping
from typing import Final

from shardwright.router.context.log_verbosity import INHERITED, Verbosity

LOGGERS: Final[Mapping[str, tuple[str, ...]]] = {
    "accessControl": ("daemon.audit", "router.access"),
    "command": ("router.commands", "router.operations"),
    "control": ("daemon.logs", "daemon.run", "daemon.stack_traces", "router.sessions", "router.workers"),
    "network": ("daemon.http", "daemon.tls", "wire.disconnects", "wire.monitor", "wire.reactor", "wire.server"),
    "network.connectionPool": ("wire.abandoned", "wire.newcomers", "wire.pools"),
    "query": ("router.change_streams", "router.cursors", "wire.cursor"),
    "sharding": ("config_servers", "router.clock", "router.oplogs", "router.shards"),
    "sharding.shardingCatalogRefresh": ("router.routing",),
}
"""The loggers of each component; all others have the default verbosity."""


def verbosities(tree: Verbosity) -> dict[str, int]:
    """The verbosity of each logger in `LOGGERS`; `INHERITED` for those that have the default.

    Args:
        tree: the value of ``logComponentVerbosity``.
    """
    return {logger: _verbosity(tree, component) for component, loggers in LOGGERS.items() for logger in loggers}


def _verbosity(tree: Verbosity, component: str) -> int:
    """The verbosity of the nearest component on a path that has its own."""
    found, node = INHERITED, tree
    for name in component.split("."):
        node = node[name]
        found = found if node["verbosity"] == INHERITED else node["verbosity"]
    return found
