"""The table of commands that only a config server has, and a command in progress on the primary (`Operation`).

A decorator on its handler registers a command; `configd.commands` imports all of them. `configd.dispatcher` does
what they have in common (primary, write concern, deadline, errors).
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Final, TypeAlias

from shardwright.configd.term.term import Term
from shardwright.sharding.namespace import Namespace
from shardwright.wire.arguments import Arguments
from shardwright.wire.request import Request


class Operation:
    """A request with the term in which it is processed.

    Attributes:
        term: the term's resources.
        arguments: the fields of the command.
        client_address: ``ip:port`` of the sender.
    """

    def __init__(self, term: Term, request: Request, client_address: str) -> None:
        self.term = term
        self.request = request
        self.arguments = Arguments.of(request)
        self.client_address = client_address

    @property
    def name(self) -> str:
        """The command's name."""
        return self.request.name

    @property
    def subject(self) -> str:
        """The string in the command's own field, such as a namespace or the name of a shard.

        Raises:
            CommandError: TypeMismatch.
        """
        return self.arguments.namespace(self.request.name.encode())

    @property
    def namespace(self) -> Namespace:
        """The collection named by the command's own field.

        Raises:
            CommandError: TypeMismatch, InvalidNamespace.
        """
        return Namespace.parse_collection(self.subject)

    async def log_changes(self, what: str, namespace: str, *details: Mapping[str, Any]) -> None:
        """Record changes in ``config.changelog``."""
        await self.term.changelog.log_changes(what, namespace, details, client_address=self.client_address)


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
