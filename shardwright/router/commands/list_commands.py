"""``listCommands``, and commands that routers refuse."""

from typing import Final

from shardwright.router.commands.command_registry import command, enabled_commands
from shardwright.router.operations.operation import Operation
from shardwright.router.replies.own_reply import Reply
from shardwright.router.replies.plain_error import PlainError
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError

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
