"""``listCommands``, the commands that routers refuse, and the generic argument ``help: true``."""

from typing import TYPE_CHECKING, Final

from shardwright.router.operations.operation import Operation
from shardwright.router.operations.router_command import RouterCommand
from shardwright.router.replies.reply_builder import PlainError, Reply
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.transport.request_loop import may_run_in_reactor

if TYPE_CHECKING:
    from shardwright.daemon.commands.command_table import CommandTable

_WITHOUT_AUTHENTICATION: Final = frozenset(
    {
        *(
            "_isSelf",
            "buildInfo",
            "configureFailPoint",
            "connectionStatus",
            "echo",
            "getLastError",
            "getnonce",
            "hello",
        ),
        *("isMaster", "isdbgrid", "listCommands", "ping", "refreshLogicalSessionCacheNow", "waitForFailPoint"),
        *("authenticate", "saslContinue", "saslStart", "testDeprecation", "whatsmyuri"),
    }
)
"""Commands that MongoDB runs before authentication. Here the test commands among them require a log-in."""


async def list_commands(operation: Operation) -> Reply:
    """All commands of this router."""
    commands: CommandTable[RouterCommand] = operation.context.commands
    return {
        "commands": {
            entry.name: {
                "help": entry.help,
                "requiresAuth": entry.name not in _WITHOUT_AUTHENTICATION,
                "secondaryOk": entry.reads,
                "adminOnly": entry.admin_only,
                "apiVersions": list(entry.api_versions),
                "deprecatedApiVersions": list(entry.deprecated_api_versions),
            }
            for entry in sorted(commands, key=lambda entry: entry.name)
        }
    }


async def repl_set_get_status(operation: Operation) -> Reply:
    """Refused by routers; shells use the error to recognize one."""
    raise _ForMongodError("replSetGetStatus is not supported through mongos")


async def compact(operation: Operation) -> Reply:
    """Not for routers."""
    raise CommandError(ErrorCode.CommandNotSupported, "compact not allowed through mongos")


async def set_free_monitoring(operation: Operation) -> Reply:
    """Not for routers."""
    raise CommandError(ErrorCode.CommandFailed, "Free Monitoring commands are not supported on mongos")


class _ForMongodError(PlainError):
    """Carries ``info: "mongos"``, by which clients recognize a router."""

    def reply(self) -> dict[str, object]:
        """Return the body of the reply."""
        return {"info": "mongos", **super().reply()}


@may_run_in_reactor
async def help_if_asked(operation: Operation, command: RouterCommand) -> bytes | None:
    """Describe a command if its field ``help`` is true by MongoDB's rules for values of any type."""
    value = operation.request.get(b"help")
    if value is None or value is False or value == 0:
        return None
    return operation.framed({"help": f"help for: {command.name} {command.help}"})
