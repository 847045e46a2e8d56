"""A command of the router: its entry in the table of all commands (`router.commands.router_commands`).

What every command has in common (metrics, deadlines, errors, replies) is in the stages of the dispatcher, so that a
handler has only what its command does.
"""

from collections.abc import Awaitable, Callable
from dataclasses import KW_ONLY, dataclass
from typing import TypeAlias

from shardwright.daemon.commands.command_table import Command
from shardwright.router.operations.operation import Operation
from shardwright.router.replies.reply_builder import Reply

CommandHandler: TypeAlias = Callable[[Operation], Awaitable[Reply]]


@dataclass(frozen=True, slots=True)
class RouterCommand(Command[CommandHandler]):
    """One command and its flags, for the dispatcher and ``listCommands``.

    Attributes:
        reads: it only reads: it may be cancelled when its client leaves, and be sent again after a broken connection.
        writes: it changes documents; the shards check its write concern.
        supports_write_concern: it may have a ``writeConcern``.
        deadline_from_max_time: whether ``maxTimeMS`` bounds it (in ``getMore`` and ``hello`` it means something else).
        api_versions: the versions of the Stable API that include it.
        deprecated_api_versions: the versions among them in which it is deprecated.
        begins_in_reactor: the handler usually waits for shards alone, and calls `in_own_task` where it does not.
        test_only: it exists only if test commands are enabled.
    """

    _: KW_ONLY
    reads: bool = False
    writes: bool = False
    supports_write_concern: bool = False
    deadline_from_max_time: bool = True
    api_versions: tuple[str, ...] = ()
    deprecated_api_versions: tuple[str, ...] = ()
    begins_in_reactor: bool = False
    test_only: bool = False
