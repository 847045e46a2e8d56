"""Server parameters of a cluster's shards, and which process of a shard has each of them.

Most belong to a mongod, which has the parameters for sharding in every role; shard daemons have a few of their own.
"""

from collections.abc import Mapping
from typing import Final

ORPHAN_CLEANUP_DELAY: Final = "orphanCleanupDelaySecs"
VERIFY_MIGRATIONS: Final = "verifyMigrations"

_OF_SHARD_DAEMONS: Final = frozenset({VERIFY_MIGRATIONS, "migrationCatchUpTimeoutSecs"})


def parse_parameter(text: str) -> tuple[str, str]:
    """Name and value from ``NAME=VALUE``.

    Raises:
        ValueError: it is not of that form.
    """
    name, equals, value = text.partition("=")
    if not equals or not name.isalnum() or not value:
        raise ValueError(f"{text!r} is not of the form NAME=VALUE")
    return name, value


def parameters_of_daemon(parameters: Mapping[str, str]) -> dict[str, str]:
    """The parameters for shard daemons."""
    return {name: value for name, value in parameters.items() if name in _OF_SHARD_DAEMONS}


def parameters_of_mongod(parameters: Mapping[str, str]) -> dict[str, str]:
    """The parameters for their mongods."""
    return {name: value for name, value in parameters.items() if name not in _OF_SHARD_DAEMONS}
