"""``listCommands``, the commands that routers refuse, and ``help: true`` in any command, which describes it."""

from typing import Final

from shardwright.router.commands.command_registry import Command, CommandHandler, command, enabled_commands
from shardwright.router.operations.operation import Operation
from shardwright.router.replies.reply_builder import PlainError, Reply
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.request import Request

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
"""Commands that MongoDB runs for clients that have not authenticated. Here test commands need a log-in."""


@command("listCommands")
async def list_commands(operation: Operation) -> Reply:
    """All commands of this router."""
    enabled = enabled_commands(test_commands=operation.context.parameters["enableTestCommands"])
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
            for entry in sorted(set(enabled.values()), key=lambda entry: entry.name)
        }
    }


@command("replSetGetStatus", admin_only=True)
async def repl_set_get_status(operation: Operation) -> Reply:
    """Refused by routers; shells use the error to recognize one."""
    raise _ForMongodError("replSetGetStatus is not supported through mongos")


@command("compact")
async def compact(operation: Operation) -> Reply:
    """Not for routers."""
    raise CommandError(ErrorCode.CommandNotSupported, "compact not allowed through mongos")


@command("setFreeMonitoring", admin_only=True)
async def set_free_monitoring(operation: Operation) -> Reply:
    """Not for routers."""
    raise CommandError(ErrorCode.CommandFailed, "Free Monitoring commands are not supported on mongos")


class _ForMongodError(PlainError):
    """Carries ``info: "mongos"``, by which clients recognize a router."""

    def reply(self) -> dict[str, object]:
        """The body of the reply."""
        return {"info": "mongos", **super().reply()}


def asks_for_help(request: Request) -> bool:
    """Whether ``help``, which the request has, is true, as MongoDB sees values of any type."""
    value = request.get(b"help")
    return value is not None and value is not False and value != 0


def help_for(command: Command) -> CommandHandler:
    """A handler that describes a command."""

    async def describe(operation: Operation) -> Reply:
        return {"help": f"help for: {command.name} {command.help}"}

    return describe
