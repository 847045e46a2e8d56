"""The table of commands that the shard daemon answers itself; all others go to its mongod.

A decorator registers a command's handler; `shardd.commands` imports all of them.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, TypeVar

from shardwright.shardd.commands.components import ShardComponents
from shardwright.wire.request import Request


@dataclass(frozen=True, slots=True)
class RawReply:
    """A reply that is already BSON: its elements without ``ok``, in pieces of any size."""

    elements: Sequence[bytes | memoryview]


CommandHandler: TypeAlias = Callable[[ShardComponents, Request], Awaitable[dict[str, Any] | RawReply]]

Handler = TypeVar("Handler", bound=CommandHandler)


@dataclass(frozen=True, slots=True)
class Command:
    """A command, and the checks that are made before it runs.

    Attributes:
        name: its name in MongoDB.
        handler: the function that runs it.
        admin_only: whether it runs only on the admin database.
        primary_only: whether only the primary's daemon runs it.
        needs_identity: whether the set must have been added to a cluster.
        is_ddl: whether it changes collections of a database: then the request must have the database version, and this
            shard must be the database's primary shard.
        is_interruptible: whether it may be cancelled when its client disconnects.
    """

    name: str
    handler: CommandHandler
    admin_only: bool
    primary_only: bool
    needs_identity: bool
    is_ddl: bool
    is_interruptible: bool


COMMANDS: Final[dict[str, Command]] = {}
"""All commands by name."""


def command(
    name: str,
    *,
    admin_only: bool = False,
    primary_only: bool = True,
    needs_identity: bool = True,
    is_ddl: bool = False,
    is_interruptible: bool = False,
) -> Callable[[Handler], Handler]:
    """Register the decorated function as the handler of a command; see `Command` for the arguments.

    Raises:
        ValueError: the command already has a handler.
    """

    def register(handler: Handler) -> Handler:
        if name in COMMANDS:
            raise ValueError(f"two handlers for the command {name}")
        COMMANDS[name] = Command(name, handler, admin_only, primary_only, needs_identity, is_ddl, is_interruptible)
        return handler

    return register
