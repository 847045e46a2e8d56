"""Reading and writing the cluster's feature version on the config servers, see `sharding.feature_version`."""

from typing import Any, Final

from shardwright.configd.catalog.transactions import Commands
from shardwright.daemon.unfit_cluster import check_fitness
from shardwright.sharding.feature_version import query, recording, refusal, version_of
from shardwright.wire.errors import check_writes

_ADMIN: Final = "admin"


async def read_feature_version(mongod: Commands, *, may_be_secondary: bool = False) -> int:
    """Read the cluster's feature version. A secondary's answer may be outdated.

    Raises:
        CommandError: mongod refuses, or the document is malformed.
        BackendError: mongod does not answer.
        UnfitClusterError: this daemon does not support the version.
    """
    command: dict[str, Any] = query()
    if may_be_secondary:
        command["$readPreference"] = {"mode": "nearest"}
    found = (await mongod.command(_ADMIN, command))["cursor"]["firstBatch"]
    version = version_of(found[0] if found else None)
    check_fitness(refusal(version))
    return version


async def write_feature_version(mongod: Commands, version: int) -> None:
    """Raise the cluster's feature version on a majority; errors as writes of `Catalog`."""
    check_writes(await mongod.command(_ADMIN, recording(version)))
