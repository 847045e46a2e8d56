"""The router's configuration and log: parameters, command line options, recent log lines."""

from typing import Any, Final

from shardwright.daemon.logs import recent
from shardwright.daemon.recent_log import LOG_NAMES
from shardwright.router.commands.command_registry import command
from shardwright.router.context.parameters import PARAMETERS
from shardwright.router.operations.operation import Operation
from shardwright.router.processes.siblings import tell_siblings
from shardwright.router.replies.own_reply import Reply
from shardwright.router.replies.plain_error import PlainError
from shardwright.wire.arguments import GENERIC_ARGUMENTS, Arguments
from shardwright.wire.host_and_port import HostAndPort

_NOT_PARAMETERS: Final = GENERIC_ARGUMENTS | {b"getParameter", b"setParameter"}


@command("getParameter", admin_only=True)
async def get_parameter(operation: Operation) -> Reply:
    """The values of parameters, of all of them with ``"*"``."""
    asked = operation.argument(b"getParameter")
    options: dict[str, Any] = asked if isinstance(asked, dict) else {}
    values = operation.context.parameters.all()
    wanted = values if asked == "*" or options.get("allParameters") else dict.fromkeys(_named(operation))
    found = {
        name: _shown(name, values[name], details=bool(options.get("showDetails"))) for name in wanted if name in values
    }
    if not found:
        raise PlainError("no option found to get")
    return found


@command("setParameter", admin_only=True)
async def set_parameter(operation: Operation) -> Reply:
    """Changes a parameter, in all processes of this router."""
    names = _named(operation)
    if not names:
        raise PlainError("no option found to set, use help:true to see options ")
    parameters = operation.context.parameters
    for name in names:
        if name not in PARAMETERS:
            raise PlainError(f"attempted to set unrecognized parameter [{name}], use help:true to see options ")
        if PARAMETERS[name].check is None:
            raise PlainError(f"not allowed to change [{name}] at runtime")
    values = {name: operation.argument(name.encode()) for name in names}
    old = [parameters.set(name, value) for name, value in values.items()]
    await tell_siblings(operation.context, operation.request, {"setParameter": 1, **values})
    return {"was": old[0]}


@command("getCmdLineOpts", admin_only=True, arguments=())
async def get_command_line_options(operation: Operation) -> Reply:
    """The command line of this router."""
    options = operation.context.options
    return {
        "argv": list(options.arguments),
        "parsed": {
            "net": {"port": HostAndPort.parse(options.address).port},
            **({"setParameter": dict(sorted(options.parameters.items()))} if options.parameters else {}),
            "sharding": {"configDB": str(options.config_servers)},
        },
    }


@command("getLog", admin_only=True, arguments=())
async def get_log(operation: Operation) -> Reply:
    """The newest lines of the log, or the warnings of the start."""
    name = Arguments.of(operation.request).string(b"getLog")
    if name == "*":
        return {"names": list(LOG_NAMES)}
    excerpt = recent.excerpt(name)
    return {"totalLinesWritten": excerpt.total_lines_written, "log": list(excerpt.lines)}


def _named(operation: Operation) -> list[str]:
    """The names of the parameters in a command."""
    fields = operation.request.fields
    return [
        name.decode(errors="replace") for name in fields if name not in _NOT_PARAMETERS and not name.startswith(b"$")
    ]


def _shown(name: str, value: object, *, details: bool) -> object:
    if not details:
        return value
    parameter = PARAMETERS[name]
    return {
        "value": value,
        "settableAtRuntime": parameter.check is not None,
        "settableAtStartup": parameter.parse is not None,
    }
