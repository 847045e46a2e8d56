"""The config time in the replies of the config server's own commands."""

from typing import Any

from shardwright.configd.catalog.transactions import Commands
from shardwright.sharding.clock import CONFIG_TIME
from shardwright.wire.errors import BackendError, CommandError


async def config_time(mongod: Commands) -> dict[str, Any]:
    """The time up to which the catalog is majority-committed; empty if mongod has stepped down or is gone.

    The operation time of a majority read is the newest committed time.
    """
    find = {"find": "version", "limit": 1, "readConcern": {"level": "majority"}}
    try:
        return {CONFIG_TIME.decode(): (await mongod.command("config", find))["operationTime"]}
    except (BackendError, CommandError):
        return {}  # the command has been executed, and its reply matters more
