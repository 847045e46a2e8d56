"""The config time that replies of the config server's own commands carry."""

from typing import Any

from shardwright.configd.catalog.transactions import Commands
from shardwright.sharding.clock import CONFIG_TIME
from shardwright.wire.errors import BackendError, CommandError


async def config_time(mongod: Commands) -> dict[str, Any]:
    """Up to where a majority has the catalog; nothing from a mongod that has stepped down or gone since.

    The operation time of a majority read is the last one that is committed.
    """
    find = {"find": "version", "limit": 1, "readConcern": {"level": "majority"}}
    try:
        return {CONFIG_TIME.decode(): (await mongod.command("config", find))["operationTime"]}
    except (BackendError, CommandError):
        return {}  # the command has been done, and its answer matters more
