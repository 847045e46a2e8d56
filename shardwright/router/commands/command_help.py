"""``help: true`` in any command: the router answers what the command is for, and does not run it."""

from shardwright.router.commands.command_registry import Command, CommandHandler
from shardwright.router.operations.operation import Operation
from shardwright.router.replies.own_reply import Reply
from shardwright.wire.request import Request


def asks_for_help(request: Request) -> bool:
    """Whether ``help``, which the request has, is true, as MongoDB sees values of any type."""
    value = request.get(b"help")
    return value is not None and value is not False and value != 0


def help_for(command: Command) -> CommandHandler:
    """A handler that describes a command."""

    async def describe(operation: Operation) -> Reply:
        return {"help": f"help for: {command.name} {command.help}"}

    return describe
