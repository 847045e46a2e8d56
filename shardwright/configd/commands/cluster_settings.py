"""Settings that all servers of a cluster have: its feature compatibility version, and its cluster parameters.

The config servers check and store a change first, then each shard. One change is made at a time, and no shard is added
meanwhile: whatever several clients ask for at once, all servers have the same in the end. A change that fails halfway
has to be repeated. A new shard gets the settings before it is added.
"""

from collections.abc import Mapping
from typing import Any, Final

import trio

from shardwright.configd.commands.command_registry import WriteConcernRule, config_command
from shardwright.configd.commands.operation import Operation
from shardwright.configd.primary.locks import CLUSTER_SETTINGS
from shardwright.configd.primary.primary import Primary
from shardwright.wire.errors import CommandError

_VERSION: Final = "setFeatureCompatibilityVersion"
_PARAMETER: Final = "_configsvrSetClusterParameter"
_MAJORITY: Final = {"w": "majority", "wtimeout": 60_000}


@config_command(_VERSION, write_concern=WriteConcernRule.ANY)
async def set_feature_compatibility_version(operation: Operation) -> dict[str, Any]:
    """Enable or disable the features that an older version of MongoDB does not understand, on all servers.

    Raises:
        CommandError: a mongod's error; HostUnreachable or FailedToSatisfyReadPreference, a shard cannot be reached.
    """
    operation.arguments.refuse_unknown((_VERSION.encode(),))
    await _set_everywhere(operation.primary, {_VERSION: operation.subject, "writeConcern": _MAJORITY})
    return {}


@config_command(_PARAMETER)
async def set_cluster_parameter(operation: Operation) -> dict[str, Any]:
    """Change a cluster parameter on all servers.

    Raises:
        CommandError: as `set_feature_compatibility_version`.
    """
    await _set_everywhere(operation.primary, {"setClusterParameter": operation.request.get(_PARAMETER.encode())})
    return {}


async def settings(primary: Primary) -> list[dict[str, Any]]:
    """The commands that give a new shard the settings of the cluster.

    Raises:
        CommandError: the mongod refuses to tell.
        BackendError: the mongod does not answer.
    """
    asked = {"getParameter": 1, "featureCompatibilityVersion": 1}
    version = (await primary.catalog.mongod.command("admin", asked))["featureCompatibilityVersion"]["version"]
    parameters = await primary.catalog.find("clusterParameters", {})
    return [
        {_VERSION: version, "writeConcern": _MAJORITY},
        *({"setClusterParameter": {each["_id"]: _without_names(each)}} for each in parameters),
    ]


def _without_names(parameter: Mapping[str, Any]) -> dict[str, Any]:
    """The value of a cluster parameter, without the fields that say which and since when."""
    return {name: value for name, value in parameter.items() if name not in ("_id", "clusterParameterTime")}


async def _set_everywhere(primary: Primary, setting: Mapping[str, Any]) -> None:
    errors: list[CommandError] = []
    async with primary.locks.hold(CLUSTER_SETTINGS):
        await primary.catalog.mongod.command("admin", setting)
        shards = await primary.catalog.shards()

        async def set_on(index: int) -> None:
            try:
                await primary.shards.command(shards[index], "admin", setting)
            except CommandError as error:
                errors.append(error)

        async with trio.open_nursery() as nursery:
            for index in range(len(shards)):
                nursery.start_soon(set_on, index)
    if errors:
        raise errors[0]
