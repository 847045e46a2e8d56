"""The table of a daemon's commands, the common part of its entries, and the namespace that a request names.

Each daemon has its own table, whose entries add the daemon's own flags to the common ones. Logs and dispatch use the
namespace of a request and the first stage of its pipeline.
"""

from collections.abc import Awaitable, Callable, Container, Iterable, Iterator
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Final, Generic, Self, TypeVar

from shardwright.wire.arguments import Arguments
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.rawbson import ARRAY, OBJECT, STRING, InvalidBSONError, Span, spans
from shardwright.wire.request import Request

Handler = TypeVar("Handler", bound=Callable[..., Awaitable[Any]])

_NAME_NO_COLLECTION: Final = frozenset(
    {"clearLog", "configureFailPoint", "echo", "getLog", "getParameter", "waitForFailPoint"}
)
"""Commands of all daemons whose argument may be a string other than a collection's name."""


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


def namespace_of(request: Request, *, in_full: Container[str] = (), without: Container[str] = ()) -> str:
    """Return the namespace of a request; only the database if it names no collection.

    Args:
        in_full: commands whose argument is ``db.collection``, or a database, instead of a collection name.
        without: commands of the daemon whose argument is another name, such as a shard's.
    """
    if request.name in without or request.name in _NAME_NO_COLLECTION:
        return request.db
    # The argument of getMore itself is a cursor.
    span = request.fields.get(b"collection") if request.name == "getMore" else next(iter(request.fields.values()))
    name = None if span is None else _string(request.body, span)
    if name is None:
        return request.db
    return name if request.name in in_full else f"{request.db}.{name}"


def _string(body: bytes, span: Span) -> str | None:
    """Return the string value, or the nested command's (in ``explain``)."""
    if span[0] == OBJECT:
        try:
            span = next((inner for _, inner in spans(body, span[2])), span)
        except InvalidBSONError:
            return None
    if span[0] != STRING:
        return None
    return body[span[2] + 4 : span[3] - 1].decode(errors="replace")


def first_stage_names(request: Request) -> list[bytes]:
    """Return the field names of a request's first stage, which are one if it is well-formed.

    The list is empty if the request has no pipeline, or if its pipeline is empty or malformed.

    Raises:
        InvalidBSONError: the request is not well-formed BSON.
    """
    pipeline = request.fields.get(b"pipeline")
    if pipeline is None or pipeline[0] != ARRAY:
        return []
    first = next(spans(request.body, pipeline[2]), None)
    if first is None or first[1][0] != OBJECT:
        return []
    return [name for name, _ in spans(request.body, first[1][2])]
