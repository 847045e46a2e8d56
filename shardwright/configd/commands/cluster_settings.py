"""Settings of all servers: compatibility and feature version, cluster parameters, user write block mode.

The config servers check and store a change first, then each shard. Only one change is made at a time, and no shard is
added during it. So all servers get the same settings, whatever several clients request concurrently. A change that
fails halfway has to be repeated. A new shard gets the settings before it is added.

**User write block mode.** The document of its coordinator (``config.sharding_configsvr_coordinators``) is written
before the first phase and removed after the last, so the next primary continues in the same phase. Each phase runs on
all shards first, then on the config servers. There is one coordinator at a time, and a request for the same mode joins
it.

**Feature version.** ``_configsvrFinishUpgrade`` raises it to the newest one of this release. Like
``setFeatureCompatibilityVersion``, it is an operator's decision. No daemon without the new version can run afterwards.
So the command is refused while such a daemon runs or may run, and one that starts later refuses to run.

``_getUserCacheGeneration`` shows a genuine mongos whether users or roles have changed. Our routers do not use it: they
read each user again before its entry expires. A mongod answers only as a config server, with its own number that
changes with each write. Here the answer is a digest of the stored documents. All members agree on it, so an election
does not make routers read all users again.

``refreshLogicalSessionCacheNow`` on a config server shards the collection of the sessions of all servers.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from functools import partial
from hashlib import sha256
from typing import Any, Final
from uuid import uuid4

import bson
import trio
from bson.binary import Binary
from bson.int64 import Int64
from bson.objectid import ObjectId

from shardwright.configd.balancer.commands_scheduler import set_up_sessions_collection
from shardwright.configd.catalog.catalog import read_feature_version, write_feature_version
from shardwright.configd.commands.operation import Operation
from shardwright.configd.term.shard_clients import handshake
from shardwright.configd.term.term import ADDING_SHARDS, CLUSTER_SETTINGS, END, Term
from shardwright.daemon.backoff import Backoff, until_done
from shardwright.daemon.sidecar.user_write_block import Phase, UserWriteBlock
from shardwright.daemon.survey import ask_members, running_routers
from shardwright.sharding.feature_version import NEWEST, check_obstacles, may_be_obstacle, upgrade_report
from shardwright.wire.arguments import Strictness
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import BackendError, CommandError, check_writes
from shardwright.wire.logger import get_logger
from shardwright.wire.transport.cursor import DecodedCursor

logger = get_logger("configd.user_writes")

COORDINATORS: Final = "sharding_configsvr_coordinators"

_TYPE: Final = "setUserWriteBlockMode"

_ID: Final = {"coordinatorType": _TYPE}

_LOCK: Final = "user writes"

_MAJORITY: Final = {"w": "majority", "wtimeout": 60_000}

_VERSION: Final = "setFeatureCompatibilityVersion"

_PARAMETER: Final = "_configsvrSetClusterParameter"


async def coordinate_user_write_block(operation: Operation, *, block: bool) -> None:
    """Block the writes of users, or allow them again; continues even if this is cancelled.

    Raises:
        CommandError: ConflictingOperationInProgress, the other mode is being set; InterruptedDueToReplStateChange.
    """
    term = operation.term
    # The coordinator begins right after its document is written. Otherwise it would begin only in the next term.
    async with operation.committing(_LOCK):
        document = await _find(term)
        if document is None:
            session = {"lsid": {"id": Binary.from_uuid(uuid4())}, "txnNumber": Int64(0)}
            document = {"_id": _ID, "block": block, "phase": str(Phase.PREPARE), "session": session}
            await _save(term, document)
        elif document["block"] != block:
            raise CommandError(
                ErrorCode.ConflictingOperationInProgress,
                "Another ConfigsvrCoordinator with different arguments is already running with ID: "
                '{ coordinatorType: "setUserWriteBlockMode" }',
            )
    await _run(term, document)


async def resume_user_write_block(term: Term) -> None:
    """Resume the coordinator that a former primary left unfinished, if there is one."""
    find = partial(_find, term)
    document = await until_done(find, Backoff(first_seconds=0.5, seconds_max=5.0), _log_failure)
    if document is not None:
        logger.info("Resuming to set the user write block mode", block=document["block"], phase=document["phase"])
        await _run(term, document)


async def _run(term: Term, document: dict[str, Any]) -> None:
    """Run the coordinator of a document to its end, or wait for the end of the present run."""
    await term.user_write_blocks.run(bytes(document["session"]["lsid"]["id"]), partial(_work, term, document))


async def _work(term: Term, document: dict[str, Any]) -> None:
    if await _is_over(term, document):
        return  # another run ended between the reading of the document and the beginning of this one
    for phase in list(Phase)[list(Phase).index(Phase(document["phase"])) :]:
        step = partial(_enter, term, document, phase)
        await until_done(step, Backoff(first_seconds=0.2, seconds_max=5.0), _log_failure)
    await term.hang_at(_TYPE, END)
    remove = partial(term.catalog.delete, COORDINATORS, {"_id": _ID})
    await until_done(remove, Backoff(first_seconds=0.2, seconds_max=5.0), _log_failure)
    logger.info("Set the user write block mode", block=document["block"])


async def _is_over(term: Term, document: dict[str, Any]) -> bool:
    find = partial(_find, term)
    present = await until_done(find, Backoff(first_seconds=0.2, seconds_max=5.0), _log_failure)
    return present is None or present["session"]["lsid"] != document["session"]["lsid"]


async def _enter(term: Term, document: dict[str, Any], phase: Phase) -> None:
    """Run a phase on all servers; no shard can be added during it."""
    session = document["session"]
    document |= {"phase": str(phase), "session": {**session, "txnNumber": Int64(session["txnNumber"] + 1)}}
    block: bool = document["block"]
    async with term.locks.hold(ADDING_SHARDS):
        await _save(term, document)
        await term.hang_at(_TYPE, phase)
        await _send_to_shards(term, document, phase)
        await UserWriteBlock(term.catalog.mongod).enter(phase, block=block)


async def _send_to_shards(term: Term, document: dict[str, Any], phase: Phase) -> None:
    """Run a phase on all shards concurrently.

    Raises:
        CommandError: the error of one of them; the command has been sent to all.
    """
    command = {
        "_shardsvrSetUserWriteBlockMode": 1,
        "global": document["block"],
        "phase": str(phase),
        **document["session"],
        "writeConcern": _MAJORITY,
    }
    errors: list[CommandError] = []

    async def send(shard_id: str) -> None:
        try:
            await term.shards.command(await term.catalog.shard(shard_id), "admin", command)
        except CommandError as error:
            errors.append(error)

    async with trio.open_nursery() as nursery:
        for shard in await term.catalog.shards():
            nursery.start_soon(send, shard.id)
    for error in errors:
        raise error


async def _find(term: Term) -> dict[str, Any] | None:
    return await term.catalog.find_by_id(COORDINATORS, _ID)


async def _save(term: Term, document: dict[str, Any]) -> None:
    update = {"q": {"_id": _ID}, "u": document, "upsert": True}
    reply = await term.catalog.mongod.command(
        "config", {"update": COORDINATORS, "updates": [update], "writeConcern": {"w": "majority"}}
    )
    check_writes(reply)


def _log_failure(error: BackendError | CommandError, retry_seconds: float) -> None:
    logger.warning(
        "Could not set the user write block mode yet", error=str(error), retry_seconds=round(retry_seconds, 3)
    )


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
    await coordinate_user_write_block(operation, block=block)
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


async def finish_upgrade(operation: Operation) -> dict[str, Any]:
    """Raise the feature version, unless it is the newest one already.

    The reply has the cluster's ``featureVersion``, the ``newest`` that this daemon supports, and for each of the
    ``daemons`` the newest that it supports. With ``dryRun`` nothing changes, and ``obstacles`` has the reasons against
    a change.

    Raises:
        CommandError: IncompatibleServerVersion, a daemon does not support the new version, or cannot be reached.
    """
    is_dry_run = operation.arguments.boolean(b"dryRun", strictness=Strictness.BOOL)
    term = operation.term
    # No shard may be added during the checks.
    async with term.locks.hold(ADDING_SHARDS, CLUSTER_SETTINGS):
        before = await read_feature_version(term.catalog.mongod)
        report = await _survey(term, before)
        if is_dry_run:
            return report
        check_obstacles(report)
        async with operation.committing():
            # Also if it is the newest: an earlier primary may have lost its role before the write was on a majority.
            await write_feature_version(term.catalog.mongod, NEWEST)
            if before < NEWEST:
                await operation.log_changes("finishUpgrade", "", {"from": before, "to": NEWEST})
    return {**report, "featureVersion": NEWEST, "obstacles": []}


async def _survey(term: Term, version: int) -> dict[str, Any]:
    """Ask all daemons which feature versions they support."""
    catalog = term.catalog
    shards = await catalog.shards()
    sets = [term.config_servers(), *(shard.connection_string for shard in shards)]
    members = await ask_members(term.shards.transport, sets, handshake)
    now: datetime = (await catalog.mongod.command("admin", {"hello": 1}))["localTime"]
    routers = await running_routers(
        lambda: catalog.find("mongos", {}),
        now.replace(tzinfo=UTC),
        concerns=lambda entry: version < NEWEST and may_be_obstacle(entry),
    )
    return upgrade_report(version, members, routers)
