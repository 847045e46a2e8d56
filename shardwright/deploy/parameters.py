"""Server parameters of a cluster, and the processes that each of them applies to.

Most belong to the shards' mongods, which have the parameters for sharding in every role; shard daemons have a few of
their own. Test commands are enabled on routers; the mongods behind daemons always have them.
"""

from collections.abc import Mapping
from typing import Final

ORPHAN_CLEANUP_DELAY: Final = "orphanCleanupDelaySecs"
VERIFY_MIGRATIONS: Final = "verifyMigrations"
ENABLE_TEST_COMMANDS: Final = "enableTestCommands"
DIAGNOSTIC_DATA: Final = "diagnosticDataCollectionEnabled"

_SESSION_TIMEOUT: Final = "localLogicalSessionTimeoutMinutes"
_OF_ALL_MONGODS: Final = frozenset({_SESSION_TIMEOUT, DIAGNOSTIC_DATA})

_OF_BOTH: Final = frozenset({"enablePassages"})
_OF_SHARD_DAEMONS: Final = _OF_BOTH | frozenset(
    {
        *(VERIFY_MIGRATIONS, "migrationCatchUpTimeoutSecs"),
        *("autoSplitChunks", "autoSplitGrowthFraction", "keyStatistics", "keyStatisticsIntervalSecs"),
    }
)
_OF_ROUTERS: Final = frozenset({ENABLE_TEST_COMMANDS}) | _OF_BOTH
_OF_ROUTERS_TOO: Final = frozenset(
    {
        *("disableLogicalSessionCacheRefresh", "logicalSessionRefreshMillis", "maxAcceptableLogicalClockDriftSecs"),
        *("maxSessions", _SESSION_TIMEOUT),
    }
)
"""Parameters of routers as well as of the shards' mongods."""


def parse_parameter(text: str) -> tuple[str, str]:
    """Parse name and value from ``NAME=VALUE``."""
    name, equals, value = text.partition("=")
    if not equals or not name.isalnum() or not value:
        raise ValueError(f"{text!r} is not of the form NAME=VALUE")
    return name, value


def parameters_of_daemon(parameters: Mapping[str, str]) -> dict[str, str]:
    """Select the parameters for shard daemons."""
    return {name: value for name, value in parameters.items() if name in _OF_SHARD_DAEMONS}


def parameters_of_router(parameters: Mapping[str, str]) -> dict[str, str]:
    """Select the parameters for routers."""
    return {name: value for name, value in parameters.items() if name in _OF_ROUTERS | _OF_ROUTERS_TOO}


def parameters_of_config_mongod(parameters: Mapping[str, str]) -> dict[str, str]:
    """Select the parameters for the mongods of the config servers.

    One of them determines the expiry of ``config.system.sessions``.
    """
    return {name: value for name, value in parameters.items() if name in _OF_ALL_MONGODS}


def parameters_of_mongod(parameters: Mapping[str, str]) -> dict[str, str]:
    """Select the parameters for the shards' mongods."""
    return {name: value for name, value in parameters.items() if name not in _OF_SHARD_DAEMONS | _OF_ROUTERS}
