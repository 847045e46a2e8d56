"""The server parameters of the shard daemon itself; all others are its mongod's."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from shardwright.daemon.parameter_text import parse_boolean
from shardwright.shardd.key_statistics.parameters import KeyStatisticsParameters
from shardwright.shardd.migration.throttling import MigrationParameters
from shardwright.shardd.splitting.settings import SplitParameters
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.passages import EPOCH


@dataclass(slots=True)
class PassageParameters:
    """Parameters of passages.

    Attributes:
        is_enabled: whether operations that were merely passed on are recognised from then on (`wire.passages`).
    """

    is_enabled: bool = True


@dataclass(frozen=True, slots=True)
class ServerParameters:
    """The present values of all parameters, in groups."""

    migration: MigrationParameters
    splitting: SplitParameters
    key_statistics: KeyStatisticsParameters
    passages: PassageParameters = field(default_factory=PassageParameters)


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter.

    Attributes:
        group: the attribute of `ServerParameters` with its group.
        attribute: the attribute of the group with its value.
        check: validates a client's value, and returns the value to store.
        parse: parses the text of a command line.
    """

    group: str
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


def _fraction(value: Any) -> float:  # noqa: ANN401 - whatever a client sent
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 1:
        raise CommandError(ErrorCode.BadValue, f"expected a number above 0 and up to 1, got {value!r}")
    return float(value)


PARAMETERS: Final[Mapping[str, Parameter]] = {
    "enablePassages": Parameter("passages", "is_enabled", _boolean, parse_boolean),
    "verifyMigrations": Parameter("migration", "verify", _boolean, parse_boolean),
    "migrationCatchUpTimeoutSecs": Parameter("migration", "catch_up_seconds_max", _seconds, float),
    "keyStatistics": Parameter("key_statistics", "is_enabled", _boolean, parse_boolean),
    "keyStatisticsIntervalSecs": Parameter("key_statistics", "interval_seconds", _seconds, float),
    "autoSplitChunks": Parameter("splitting", "is_enabled", _boolean, parse_boolean),
    "autoSplitGrowthFraction": Parameter("splitting", "growth_fraction", _fraction, float),
}
"""The parameters by name."""


def get_parameter(parameters: ServerParameters, name: str) -> Any:  # noqa: ANN401 - parameters are of all types
    """The value of a parameter."""
    parameter = PARAMETERS[name]
    return getattr(getattr(parameters, parameter.group), parameter.attribute)


def set_parameter(parameters: ServerParameters, name: str, value: Any) -> Any:  # noqa: ANN401 - of any type
    """Change a parameter; returns its old value.

    Raises:
        CommandError: BadValue.
    """
    parameter = PARAMETERS[name]
    group = getattr(parameters, parameter.group)
    old = getattr(group, parameter.attribute)
    setattr(group, parameter.attribute, parameter.check(value))
    EPOCH.bump()
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
