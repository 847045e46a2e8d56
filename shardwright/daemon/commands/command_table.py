"""The table of a daemon's commands, and the common part of its entries.

A daemon writes its table as one expression that can be read from top to bottom: a line or two for each command, with
its name, its handler and its flags. Handlers are ordinary functions that do not refer to the table.
"""

from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Final, Generic, Self, TypeVar

from shardwright.wire.arguments import Arguments
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.request import Request

Handler = TypeVar("Handler", bound=Callable[..., Awaitable[Any]])


@dataclass(frozen=True, slots=True)
class Command(Generic[Handler]):
    """One command.

    Attributes:
        admin_only: whether it runs only on the admin database.
        arguments: the command's own arguments. Further ones are refused, except for generic ones; None if the handler,
            or a server that the command is sent to, refuses them.
    """

    name: str
    handler: Handler
    _: KW_ONLY
    aliases: tuple[str, ...] = ()
    admin_only: bool = False
    arguments: tuple[str, ...] | None = None
    _known: frozenset[bytes] = field(init=False, repr=False, default=frozenset())

    def __post_init__(self) -> None:
        known = frozenset(each.encode() for each in (*self.names, *(self.arguments or ())))
        object.__setattr__(self, "_known", known)

    @property
    def names(self) -> tuple[str, ...]:
        """The name and the aliases."""
        return (self.name, *self.aliases)

    @property
    def help(self) -> str:
        """The description for ``listCommands``: the first line of the handler's docstring, or nothing."""
        summary = (self.handler.__doc__ or "").strip().splitlines()
        return summary[0] if summary else ""

    def check_database(self, request: Request) -> None:
        """Refuse a request on a database on which the command does not run.

        Raises:
            CommandError: Unauthorized.
        """
        if self.admin_only and request.db != "admin":
            raise CommandError(ErrorCode.Unauthorized, f"{request.name} may only be run against the admin database.")

    def check_arguments(self, request: Request) -> None:
        """Refuse arguments that the command does not have, if its entry lists them.

        Raises:
            CommandError: 40415.
        """
        if self.arguments is not None:
            Arguments.of(request, self.name).refuse_unknown(self._known)


AnyCommand = TypeVar("AnyCommand", bound=Command[Any])


class CommandTable(Generic[AnyCommand]):
    """The commands of one daemon, in the order of the table.

    Attributes:
        find: returns the command with a name or alias, or None.
    """

    def __init__(self, commands: Iterable[AnyCommand]) -> None:
        """Create the table.

        Raises:
            ValueError: two commands have the same name.
        """
        self._commands = tuple(commands)
        by_name: dict[str, AnyCommand] = {}
        for command in self._commands:
            for name in command.names:
                if name in by_name:
                    raise ValueError(f"two handlers for the command {name}")
                by_name[name] = command
        self._by_name: Final = by_name
        self.find: Final[Callable[[str], AnyCommand | None]] = by_name.get

    def __iter__(self) -> Iterator[AnyCommand]:
        return iter(self._commands)

    def __contains__(self, name: object) -> bool:
        return name in self._by_name

    def __getitem__(self, name: str) -> AnyCommand:
        return self._by_name[name]

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the commands, without aliases."""
        return tuple(command.name for command in self._commands)

    def where(self, is_wanted: Callable[[AnyCommand], bool]) -> Self:
        """Return a table of the commands that a condition holds for."""
        return type(self)(filter(is_wanted, self._commands))
