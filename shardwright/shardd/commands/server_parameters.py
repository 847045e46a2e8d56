"""The server parameters of the shard daemon itself; all others are its mongod's."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from shardwright.daemon.parameter_text import parse_boolean
from shardwright.shardd.migration.parameters import MigrationParameters
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter.

    Attributes:
        attribute: the attribute of `MigrationParameters` with its value.
        check: validates a client's value, and returns the value to store.
        parse: parses the text of a command line.
    """

    attribute: str
    check: Callable[[Any], Any]
    parse: Callable[[str], Any]


def _boolean(value: Any) -> bool:  # noqa: ANN401 - whatever a client sent
    if not isinstance(value, bool | int | float):
        raise CommandError(ErrorCode.BadValue, f"expected a boolean, got {value!r}")
    return bool(value)


def _seconds(value: Any) -> float:  # noqa: ANN401 - whatever a client sent
    if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
        raise CommandError(ErrorCode.BadValue, f"expected a number of seconds, got {value!r}")
    return float(value)


PARAMETERS: Final[Mapping[str, Parameter]] = {
    "verifyMigrations": Parameter("verify", _boolean, parse_boolean),
    "migrationCatchUpTimeoutSecs": Parameter("catch_up_seconds_max", _seconds, float),
}
"""The parameters by name."""


def get_parameter(parameters: MigrationParameters, name: str) -> Any:  # noqa: ANN401 - parameters are of all types
    """The value of a parameter."""
    return getattr(parameters, PARAMETERS[name].attribute)


def set_parameter(parameters: MigrationParameters, name: str, value: Any) -> Any:  # noqa: ANN401 - see above
    """Change a parameter; returns its old value.

    Raises:
        CommandError: BadValue.
    """
    parameter = PARAMETERS[name]
    old = getattr(parameters, parameter.attribute)
    setattr(parameters, parameter.attribute, parameter.check(value))
    return old


def parse_parameter(text: str) -> tuple[str, Any]:
    """The name and value in a command line's ``NAME=VALUE``.

    Raises:
        ValueError: no such parameter, or an invalid value, with a message for the user.
    """
    name, equals, value = text.partition("=")
    if not equals or name not in PARAMETERS:
        raise ValueError(f"{text!r} is not NAME=VALUE with one of the parameters {', '.join(PARAMETERS)}")
    parameter = PARAMETERS[name]
    try:
        return name, parameter.check(parameter.parse(value))
    except CommandError as error:
        raise ValueError(error.message) from error
