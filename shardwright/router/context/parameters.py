"""What ``getParameter`` shows and ``setParameter`` changes."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from shardwright.daemon.logs import set_level
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter.

    Attributes:
        default: its value at start.
        check: converts a client's value to the one to keep; None for a parameter that is fixed at start.
        on_change: called with the new value.
    """

    default: Any
    check: Callable[[Any], Any] | None = None
    on_change: Callable[[Any], None] | None = None


def _whole_number(low: int, high: int) -> Callable[[Any], int]:
    def check(value: Any) -> int:  # noqa: ANN401 - whatever a client sent
        if isinstance(value, bool) or not isinstance(value, int | float) or value % 1:
            raise CommandError(ErrorCode.BadValue, f"expected a whole number, got {value!r}")
        if not low <= value <= high:
            raise CommandError(ErrorCode.BadValue, f"{int(value)} is not between {low} and {high}")
        return int(value)

    return check


_INT32_MAX: Final = 2**31 - 1

PARAMETERS: Final[Mapping[str, Parameter]] = {
    "logLevel": Parameter(0, _whole_number(0, 5), lambda value: set_level("debug" if value else "info")),
    "cursorTimeoutMillis": Parameter(600_000, _whole_number(1, _INT32_MAX)),
    "mongosShutdownTimeoutMillisForSignaledShutdown": Parameter(15_000, _whole_number(0, _INT32_MAX)),
    "enableTestCommands": Parameter(False),
    "quiet": Parameter(False, bool),
    "authenticationMechanisms": Parameter([]),
    "maxBSONDepth": Parameter(200),
    "localLogicalSessionTimeoutMinutes": Parameter(30),
}
"""Parameters by name, with the names and defaults of mongos 6.0."""


class Parameters:
    """The values of this process."""

    def __init__(self) -> None:
        self._values = {name: parameter.default for name, parameter in PARAMETERS.items()}

    def __getitem__(self, name: str) -> Any:  # noqa: ANN401 - parameters are of all types
        """The value of a parameter."""
        return self._values[name]

    def all(self) -> dict[str, Any]:
        """All values by name."""
        return dict(self._values)

    def set(self, name: str, value: Any) -> Any:  # noqa: ANN401 - parameters are of all types
        """Change a parameter; returns its old value.

        Raises:
            CommandError: InvalidOptions, there is no such parameter; IllegalOperation, it is fixed at start; BadValue.
        """
        parameter = PARAMETERS.get(name)
        if parameter is None:
            raise CommandError(ErrorCode.InvalidOptions, f"attempted to set unrecognized parameter [{name}]")
        if parameter.check is None:
            raise CommandError(ErrorCode.IllegalOperation, f"not allowed to change [{name}] at runtime")
        old = self._values[name]
        self._values[name] = parameter.check(value)
        if parameter.on_change is not None:
            parameter.on_change(self._values[name])
        return old
