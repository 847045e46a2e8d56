"""``setParameter`` and ``getParameter``, for the daemon's parameters and its mongod's, also in the same command."""

from typing import Any, Final

from shardwright.daemon.sidecar.mode_change import MODE
from shardwright.shardd.commands.command_registry import command
from shardwright.shardd.commands.components import ShardComponents
from shardwright.shardd.commands.server_parameters import PARAMETERS, get_parameter, set_parameter
from shardwright.shardd.two_phase_commit.coordinators import LIFETIME_LIMIT
from shardwright.wire.request import Request
from shardwright.wire.transport.cluster_auth import CLUSTER_AUTH

_GENERIC: Final = frozenset({"lsid", "maxTimeMS", "comment", "apiVersion", "apiStrict", "apiDeprecationErrors"})


@command("setParameter", admin_only=True, primary_only=False, needs_identity=False)
async def set_parameters(shard: ShardComponents, request: Request) -> dict[str, Any]:
    """Change parameters; ``was`` in the reply is the former value of the first one.

    Raises:
        CommandError: BadValue; or mongod's error for parameters of its own.
    """
    given = _arguments(request)
    of_mongod = {name: value for name, value in given.items() if name not in PARAMETERS}
    reply = {}
    if of_mongod or not given:
        if MODE in of_mongod:
            CLUSTER_AUTH.check_ability(of_mongod[MODE])
        reply = await shard.context.mongod.command("admin", {"setParameter": 1, **of_mongod})
        if MODE in of_mongod:
            CLUSTER_AUTH.adopt_mode(of_mongod[MODE])
        if LIFETIME_LIMIT in of_mongod:
            await shard.transaction_coordinators.read_lifetime()
    for name, value in given.items():
        if name in PARAMETERS:
            reply.setdefault("was", set_parameter(shard.parameters, name, value))
    return reply


@command("getParameter", admin_only=True, primary_only=False, needs_identity=False)
async def get_parameters(shard: ShardComponents, request: Request) -> dict[str, Any]:
    """The values of the named parameters, or of all with ``getParameter: "*"`` or ``{allParameters: true}``.

    Raises:
        CommandError: mongod's error for parameters of its own.
    """
    what, given = request.get(b"getParameter"), _arguments(request)
    wants_all = what == "*" or (isinstance(what, dict) and bool(what.get("allParameters")))
    shows_details = isinstance(what, dict) and bool(what.get("showDetails"))
    of_mongod = {name: value for name, value in given.items() if name not in PARAMETERS}
    reply = {}
    if of_mongod or wants_all or not given:
        reply = await shard.context.mongod.command("admin", {"getParameter": what, **of_mongod})
    for name in PARAMETERS if wants_all else [name for name in given if name in PARAMETERS]:
        value = get_parameter(shard.parameters, name)
        details = {"value": value, "settableAtRuntime": True, "settableAtStartup": True}
        reply[name] = details if shows_details else value
    return reply


def _arguments(request: Request) -> dict[str, Any]:
    return {
        name: value
        for position, (name, value) in enumerate(request.document.items())
        if position and not name.startswith("$") and name not in _GENERIC
    }
