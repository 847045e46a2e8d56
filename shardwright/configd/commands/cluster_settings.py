"""Settings of all servers: feature compatibility version, cluster parameters, user write block mode.

The config servers check and store a change first, then each shard. Only one change is made at a time, and no shard is
added during it. So all servers get the same settings, whatever several clients request concurrently. A change that
fails halfway has to be repeated. A new shard gets the settings before it is added.

``_getUserCacheGeneration`` shows a genuine mongos whether users or roles have changed. Our routers do not use it: they
read each user again before its entry expires. A mongod answers only as a config server, with its own number that
changes with each write. Here the answer is a digest of the stored documents. All members agree on it, so an election
does not make routers read all users again.

``refreshLogicalSessionCacheNow`` on a config server shards the collection of the sessions of all servers.
"""

from collections.abc import Mapping
from hashlib import sha256
from typing import Any, Final

import bson
import trio
from bson.objectid import ObjectId

from shardwright.configd.commands.operation import Operation
from shardwright.configd.term.donor_requests import set_up_sessions_collection
from shardwright.configd.term.term import CLUSTER_SETTINGS, Term
from shardwright.configd.user_writes.coordinator import set_user_write_block_mode as set_everywhere
from shardwright.wire.arguments import Strictness
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.transport.cursor import DecodedCursor

_VERSION: Final = "setFeatureCompatibilityVersion"
_PARAMETER: Final = "_configsvrSetClusterParameter"
_MAJORITY: Final = {"w": "majority", "wtimeout": 60_000}


async def set_feature_compatibility_version(operation: Operation) -> dict[str, Any]:
    """Enable or disable the features that older versions of MongoDB do not support, on all servers.

    Raises:
        CommandError: a mongod's error; HostUnreachable or FailedToSatisfyReadPreference, a shard cannot be reached.
    """
    confirmation = operation.arguments.present(b"confirm")
    setting = {_VERSION: operation.subject, **confirmation, "writeConcern": _MAJORITY}
    await _set_everywhere(operation.term, setting)
    return {}


async def set_cluster_parameter(operation: Operation) -> dict[str, Any]:
    """Change a cluster parameter on all servers; errors as `set_feature_compatibility_version`."""
    await _set_everywhere(operation.term, {"setClusterParameter": operation.request.get(_PARAMETER.encode())})
    return {}


async def settings(term: Term) -> list[dict[str, Any]]:
    """Return the commands that give a new shard the settings of the cluster; errors as `Catalog.find`."""
    asked = {"getParameter": 1, "featureCompatibilityVersion": 1}
    version = (await term.catalog.mongod.command("admin", asked))["featureCompatibilityVersion"]["version"]
    parameters = await term.catalog.find("clusterParameters", {})
    return [
        {_VERSION: version, **_confirmation(version), "writeConcern": _MAJORITY},
        *({"setClusterParameter": {each["_id"]: _without_names(each)}} for each in parameters),
    ]


def _confirmation(version: str) -> dict[str, Any]:
    """Return the field that mongods of MongoDB 7.0 and newer require, and mongods of 6.0 refuse."""
    return {} if version.startswith(("5.", "6.")) else {"confirm": True}


def _without_names(parameter: Mapping[str, Any]) -> dict[str, Any]:
    """Return the value of a cluster parameter, without its name and its time."""
    return {name: value for name, value in parameter.items() if name not in ("_id", "clusterParameterTime")}


async def _set_everywhere(term: Term, setting: Mapping[str, Any]) -> None:
    errors: list[CommandError] = []
    async with term.locks.hold(CLUSTER_SETTINGS):
        await term.catalog.mongod.command("admin", setting)
        shards = await term.catalog.shards()

        async def set_on(index: int) -> None:
            try:
                await term.shards.command(shards[index], "admin", setting)
            except CommandError as error:
                errors.append(error)

        async with trio.open_nursery() as nursery:
            for index in range(len(shards)):
                nursery.start_soon(set_on, index)
    if errors:
        raise errors[0]


async def set_user_write_block_mode_of_cluster(operation: Operation) -> dict[str, Any]:
    """Set the mode on all servers; returns when it is in force.

    Raises ConflictingOperationInProgress if the other mode is being set.
    """
    block = operation.arguments.required_boolean(b"global", Strictness.BOOL)
    await set_everywhere(operation.term, block=block)
    return {}


async def set_user_write_block_mode(_operation: Operation) -> dict[str, Any]:
    """Refuse with IllegalOperation, because the servers of a cluster change together."""
    raise CommandError(ErrorCode.IllegalOperation, "setUserWriteBlockMode cannot be run on shardsvrs nor configsvrs")


_COLLECTIONS: Final = ("system.users", "system.roles")
_OBJECT_ID_BYTES: Final = 12


async def get_user_cache_generation(operation: Operation) -> dict[str, Any]:
    """Return an id that differs after each change to a user or a role."""
    digest = sha256()
    for collection in _COLLECTIONS:
        question = {"find": collection, "sort": {"_id": 1}, "readConcern": {"level": "majority"}}
        cursor = DecodedCursor(operation.term.catalog.mongod.command, "admin", question)
        for document in await cursor.all_documents():
            digest.update(bson.encode(document))
        digest.update(b"\0")  # separates the collections: a document would begin with its length
    return {"cacheGeneration": ObjectId(digest.digest()[:_OBJECT_ID_BYTES])}


async def refresh_logical_session_cache_now(operation: Operation) -> dict[str, Any]:
    """Shard ``config.system.sessions`` unless it is sharded; sent by routers that find it unsharded.

    Raises ShardNotFound if there are no shards yet, or a shard's error.
    """
    await set_up_sessions_collection(operation.term)
    return {}
