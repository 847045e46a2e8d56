"""The recorded parameters of commands that change how data is distributed over the cluster. Pure.

MongoDB Enterprise has events for the first five; the others have the names of their commands.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

from shardwright.daemon.audit.fields import first_of, value_of
from shardwright.wire.request import Request


def _of_namespace(*fields: str) -> Callable[[Request], dict[str, Any]]:
    """Return a function that records the first field as a namespace, with some other fields."""
    return lambda request: {"ns": first_of(request), **_present(request, *fields)}


def _of_shard(*fields: str) -> Callable[[Request], dict[str, Any]]:
    return lambda request: {"shard": first_of(request), **_present(request, *fields)}


def _shard_collection(request: Request) -> dict[str, Any]:
    options = {"unique": bool(value_of(request, "unique"))}
    return {"ns": first_of(request), "key": value_of(request, "key"), "options": options}


def _add_shard(request: Request) -> dict[str, Any]:
    return {"shard": value_of(request, "name"), "connectionString": first_of(request)}


def _present(request: Request, *fields: str) -> dict[str, Any]:
    values = {field: value_of(request, field) for field in fields}
    return {field: value for field, value in values.items() if value is not None}


SHARDING_CHANGES: Final[Mapping[str, Callable[[Request], dict[str, Any]]]] = {
    "enableSharding": _of_namespace(),
    "shardCollection": _shard_collection,
    "refineCollectionShardKey": _of_namespace("key"),
    "addShard": _add_shard,
    "removeShard": _of_shard(),
    "reshardCollection": _of_namespace("key", "unique", "numInitialChunks", "zones", "collation"),
    "abortReshardCollection": _of_namespace(),
    "commitReshardCollection": _of_namespace(),
    "cleanupReshardCollection": _of_namespace(),
    "movePrimary": _of_namespace("to"),
    "moveChunk": _of_namespace("find", "bounds", "to"),
    "moveRange": _of_namespace("min", "max", "toShard"),
    "split": _of_namespace("find", "bounds", "middle"),
    "mergeChunks": _of_namespace("bounds"),
    "clearJumboFlag": _of_namespace("find", "bounds"),
    "repairShardedCollectionChunksHistory": _of_namespace(),
    "addShardToZone": _of_shard("zone"),
    "removeShardFromZone": _of_shard("zone"),
    "updateZoneKeyRange": _of_namespace("min", "max", "zone"),
    "balancerStart": lambda _: {},
    "balancerStop": lambda _: {},
    "configureCollectionBalancing": _of_namespace("chunkSize", "defragmentCollection", "enableAutoSplitter"),
    "setAllowMigrations": _of_namespace("allowMigrations"),
}
"""The parameters of each event, by the name of command and event."""
