"""The shard daemon's own server parameters; mongod has all others."""

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
        is_enabled: whether new passages are recognised (`wire.passages`).
    """

    is_enabled: bool = True


@dataclass(frozen=True, slots=True)
class ServerParameters:
    """The current values of all parameters, in groups."""

    migration: MigrationParameters
    splitting: SplitParameters
    key_statistics: KeyStatisticsParameters
    passages: PassageParameters = field(default_factory=PassageParameters)


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter.

    Attributes:
        group: name of the group's attribute in `ServerParameters`.
        attribute: name of the value's attribute in the group.
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
    """Return the value of a parameter."""
    parameter = PARAMETERS[name]
    return getattr(getattr(parameters, parameter.group), parameter.attribute)


def set_parameter(parameters: ServerParameters, name: str, value: Any) -> Any:  # noqa: ANN401 - of any type
    """Change a parameter and return its old value, or raise BadValue."""
    parameter = PARAMETERS[name]
    group = getattr(parameters, parameter.group)
    old = getattr(group, parameter.attribute)
    setattr(group, parameter.attribute, parameter.check(value))
    EPOCH.bump()
    return old


def parse_parameter(text: str) -> tuple[str, Any]:
    """Split a command line's ``NAME=VALUE`` and parse the value, or raise ValueError with a message for the user."""
    name, equals, value = text.partition("=")
    if not equals or name not in PARAMETERS:
        raise ValueError(f"{text!r} is not NAME=VALUE with one of the parameters {', '.join(PARAMETERS)}")
    parameter = PARAMETERS[name]
    try:
        return name, parameter.check(parameter.parse(value))
    except CommandError as error:
        raise ValueError(error.message) from error
