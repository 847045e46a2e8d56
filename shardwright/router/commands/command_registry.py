"""The table of commands that the router knows.

A command is registered by the decorator on its handler; `router.commands` imports all of them. What every command has
in common (metrics, deadlines, errors, replies) is the dispatcher's, so that a handler says only what its command does.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from shardwright.router.operations.operation import Operation
from shardwright.router.replies.reply_builder import Reply
from shardwright.wire.arguments import Arguments

CommandHandler: TypeAlias = Callable[[Operation], Awaitable[Reply]]


@dataclass(frozen=True, slots=True)
class Command:
    """One command and what the dispatcher and ``listCommands`` need to know of it.

    Attributes:
        name: as MongoDB spells it.
        aliases: its other names.
        handler: the function that runs it.
        reads: it only reads: it may be cancelled when its client leaves, and be sent again after a broken connection.
        writes: it changes documents.
        admin_only: it runs on the admin database alone.
        help: one sentence for ``listCommands``, the first line of the handler's docstring.
        deadline_from_max_time: whether ``maxTimeMS`` bounds it (in ``getMore`` and ``hello`` it means something else).
        api_versions: the versions of the Stable API that include it.
        deprecated_api_versions: the versions among them in which it is deprecated.
        begins_in_reactor: the handler usually waits for shards alone, and calls `in_own_task` where it does not.
        supports_write_concern: it may have a ``writeConcern``.
        test_only: it exists only if test commands are enabled.
    """

    name: str
    aliases: tuple[str, ...]
    handler: CommandHandler
    reads: bool
    writes: bool
    admin_only: bool
    help: str
    deadline_from_max_time: bool
    api_versions: tuple[str, ...]
    deprecated_api_versions: tuple[str, ...]
    begins_in_reactor: bool
    supports_write_concern: bool
    test_only: bool


COMMANDS: Final[dict[str, Command]] = {}
"""All commands by name and alias."""


def enabled_commands(*, test_commands: bool) -> dict[str, Command]:
    """The commands of one router by name and alias.

    Args:
        test_commands: whether its test commands are enabled.
    """
    return {name: entry for name, entry in COMMANDS.items() if test_commands or not entry.test_only}


def command(
    name: str,
    *,
    aliases: tuple[str, ...] = (),
    reads: bool = False,
    writes: bool = False,
    admin_only: bool = False,
    deadline_from_max_time: bool = True,
    api_versions: tuple[str, ...] = (),
    deprecated_api_versions: tuple[str, ...] = (),
    begins_in_reactor: bool = False,
    supports_write_concern: bool = False,
    test_only: bool = False,
    arguments: tuple[str, ...] | None = None,
) -> Callable[[CommandHandler], CommandHandler]:
    """Register the decorated function as the handler of a command; see `Command` for most arguments.

    Args:
        arguments: all arguments that the command has and others do not, so that further ones are refused here; None
            if the handler, or a server that the command is sent to, refuses them.

    Raises:
        ValueError: the name is taken.
    """

    def register(handler: CommandHandler) -> CommandHandler:
        summary = (handler.__doc__ or "").strip().splitlines()
        entry = Command(
            name,
            aliases,
            handler if arguments is None else _refusing_unknown(name, (name, *aliases, *arguments), handler),
            reads,
            writes,
            admin_only,
            summary[0] if summary else "",
            deadline_from_max_time,
            api_versions,
            deprecated_api_versions,
            begins_in_reactor,
            supports_write_concern or writes,
            test_only,
        )
        for each in (name, *aliases):
            if each in COMMANDS:
                raise ValueError(f"two handlers for the command {each}")
            COMMANDS[each] = entry
        return handler

    return register


def _refusing_unknown(name: str, known: Sequence[str], handler: CommandHandler) -> CommandHandler:
    """The handler of a command that has no other arguments than the known ones."""
    names = frozenset(each.encode() for each in known)

    async def handle(operation: Operation) -> Reply:
        Arguments.of(operation.request, name).refuse_unknown(names)
        return await handler(operation)

    return handle
