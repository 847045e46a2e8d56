"""The table of commands that only a config server has.

A decorator on its handler registers a command; `configd.commands` imports all of them. `configd.dispatcher` does what
they have in common (primary, write concern, deadline, errors).
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Final, TypeAlias

from shardwright.configd.commands.operation import Operation

CommandHandler: TypeAlias = Callable[[Operation], Awaitable[dict[str, Any]]]


class WriteConcernRule(Enum):
    """Whether a command requires a ``writeConcern``."""

    MAJORITY = auto()
    """It is required, with ``w: "majority"``."""
    UNSUPPORTED = auto()
    """It is not allowed."""
    ANY = auto()
    """It is allowed and makes no difference: the command has one of its own."""


@dataclass(frozen=True, slots=True)
class ConfigCommand:
    """One command: its name, the function that runs it, its rule for write concerns, and whether it runs only on the
    admin database."""

    name: str
    handler: CommandHandler
    write_concern: WriteConcernRule
    admin_only: bool


COMMANDS: Final[dict[str, ConfigCommand]] = {}
"""All commands by name."""


def config_command(
    name: str, *, write_concern: WriteConcernRule = WriteConcernRule.MAJORITY, admin_only: bool = True
) -> Callable[[CommandHandler], CommandHandler]:
    """Register the decorated function as the handler of a command. It returns the reply without ``ok``.

    Raises:
        ValueError: the name is taken.
    """

    def register(handler: CommandHandler) -> CommandHandler:
        if name in COMMANDS:
            raise ValueError(f"two handlers for the command {name}")
        COMMANDS[name] = ConfigCommand(name, handler, write_concern, admin_only)
        return handler

    return register
