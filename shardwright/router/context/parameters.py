"""What ``getParameter`` shows and ``setParameter`` changes."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from bson.code import Code

from shardwright.daemon.logs import set_component_level, set_level
from shardwright.daemon.parameter_text import parse_boolean
from shardwright.daemon.redaction import REDACTION
from shardwright.router.context.log_components import verbosities
from shardwright.router.context.log_verbosity import INHERITED, Verbosity, changed_verbosity, default_verbosity
from shardwright.sharding.bson_text import document_text
from shardwright.sharding.session_cache import REFRESH_MILLISECONDS, SESSIONS_MAX
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.limits import LOGICAL_SESSION_TIMEOUT_MINUTES
from shardwright.wire.passages import EPOCH
from shardwright.wire.rawbson import encode_document
from shardwright.wire.transport.cluster_auth import CLUSTER_AUTH
from shardwright.wire.transport.cluster_auth_mode import UNDEFINED
from shardwright.wire.type_names import type_name_of


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter.

    Attributes:
        default: its value at start.
        check: converts a client's value to the one to keep; None for a parameter that is fixed at start.
        parse: parses the text of a command line; None for a parameter that cannot be set at start.
    """

    default: Any
    check: Callable[[Any], Any] | None = None
    parse: Callable[[str], Any] | None = None


def _whole_number(low: int, high: int) -> Callable[[Any], int]:
    def check(value: Any) -> int:  # noqa: ANN401 - whatever a client sent
        if isinstance(value, bool) or not isinstance(value, int | float) or value % 1:
            raise CommandError(ErrorCode.BadValue, f"expected a whole number, got {value!r}")
        if not low <= value <= high:
            raise CommandError(ErrorCode.BadValue, f"{int(value)} is not between {low} and {high}")
        return int(value)

    return check


_INT32_MAX: Final = 2**31 - 1


def _parse_positive(text: str) -> int:
    return _whole_number(1, _INT32_MAX)(int(text))


_CLUSTER_AUTH_MODE: Final = "clusterAuthMode"
_LEVEL: Final = "logLevel"
_COMPONENTS: Final = "logComponentVerbosity"
_REDACT: Final = "redactClientLogData"
_REQUIRE_API_VERSION: Final = "requireApiVersion"
_PASSAGES: Final = "enablePassages"


def _next_mode(value: Any) -> str:  # noqa: ANN401 - whatever a client sent
    if isinstance(value, Code):
        element = document_text(encode_document({_CLUSTER_AUTH_MODE: value}))[2:-2]
        shown = f"Unsupported type {type_name_of(value)} (value: '{element}')"
        raise CommandError(ErrorCode.BadValue, f"{shown} for setParameter: {_CLUSTER_AUTH_MODE}")
    CLUSTER_AUTH.change_mode(value)
    return CLUSTER_AUTH.mode_name


PARAMETERS: Final[Mapping[str, Parameter]] = {
    _LEVEL: Parameter(0, _whole_number(0, 5), parse=int),
    _COMPONENTS: Parameter(None, dict),
    "cursorTimeoutMillis": Parameter(600_000, _whole_number(1, _INT32_MAX), parse=int),
    "enableTimeoutOfInactiveSessionCursors": Parameter(False, bool, parse=parse_boolean),
    "mongosShutdownTimeoutMillisForSignaledShutdown": Parameter(15_000, _whole_number(0, _INT32_MAX), parse=int),
    "enableTestCommands": Parameter(False, parse=parse_boolean),
    _REQUIRE_API_VERSION: Parameter(False, bool, parse=parse_boolean),
    _PASSAGES: Parameter(True, bool, parse=parse_boolean),
    _REDACT: Parameter(False, bool, parse=parse_boolean),
    "quiet": Parameter(False, bool, parse=parse_boolean),
    _CLUSTER_AUTH_MODE: Parameter(UNDEFINED, _next_mode),
    "authSchemaVersion": Parameter(5),
    "authenticationMechanisms": Parameter(["MONGODB-X509", "SCRAM-SHA-1", "SCRAM-SHA-256"]),
    "maxBSONDepth": Parameter(200),
    "localLogicalSessionTimeoutMinutes": Parameter(LOGICAL_SESSION_TIMEOUT_MINUTES, parse=_parse_positive),
    "logicalSessionRefreshMillis": Parameter(REFRESH_MILLISECONDS, parse=_parse_positive),
    "disableLogicalSessionCacheRefresh": Parameter(False, parse=parse_boolean),
    "userCacheInvalidationIntervalSecs": Parameter(30, _whole_number(1, 86_400), parse=int),
    "maxSessions": Parameter(SESSIONS_MAX, parse=int),
    "maxAcceptableLogicalClockDriftSecs": Parameter(31_536_000, parse=int),
}
"""Parameters by name, with the names and defaults of mongos 6.0, which has no ``enablePassages``."""


def parse_parameter(text: str) -> tuple[str, str]:
    """The name and the checked text in a command line's ``NAME=VALUE``.

    Raises:
        ValueError: no such parameter, or an invalid value, with a message for the user.
    """
    name, equals, value = text.partition("=")
    at_start = sorted(each for each, parameter in PARAMETERS.items() if parameter.parse is not None)
    if not equals or name not in at_start:
        raise ValueError(f"{text!r} is not NAME=VALUE with one of the parameters {', '.join(at_start)}")
    try:
        _parsed(name, value)
    except CommandError as error:
        raise ValueError(error.message) from error
    return name, value


def _parsed(name: str, text: str) -> Any:  # noqa: ANN401 - parameters are of all types
    parameter = PARAMETERS[name]
    assert parameter.parse is not None, name
    value = parameter.parse(text)
    return value if parameter.check is None else parameter.check(value)


class Parameters:
    """The values of this process.

    Args:
        at_start: those given at start, as text that `parse_parameter` has checked.

    Attributes:
        uses_passages: the value of ``enablePassages``.
        requires_api_version: the value of ``requireApiVersion``, which every operation asks for.
    """

    def __init__(self, at_start: Mapping[str, str]) -> None:
        self._values = {name: parameter.default for name, parameter in PARAMETERS.items()}
        self._values[_COMPONENTS] = default_verbosity()
        self._values[_REDACT] = REDACTION.is_on
        self._values[_CLUSTER_AUTH_MODE] = CLUSTER_AUTH.mode_name
        self.requires_api_version = False
        self.uses_passages = True
        for name, text in at_start.items():
            self._keep(name, _parsed(name, text))

    def __getitem__(self, name: str) -> Any:  # noqa: ANN401 - parameters are of all types
        """The value of a parameter."""
        return self._values[name]

    def all(self) -> dict[str, Any]:
        """All values by name."""
        return dict(self._values)

    def set(self, name: str, value: Any) -> Any:  # noqa: ANN401 - parameters are of all types
        """Change a parameter that exists and can be changed; returns its old value.

        Raises:
            CommandError: TypeMismatch, BadValue.
        """
        check = PARAMETERS[name].check
        assert check is not None, name
        old = self._values[name]
        self._keep(name, changed_verbosity(old, value) if name == _COMPONENTS else check(value))
        return old

    def _keep(self, name: str, value: Any) -> None:  # noqa: ANN401 - parameters are of all types
        self._values[name] = value
        EPOCH.bump()
        if name == _REQUIRE_API_VERSION:
            self.requires_api_version = value
        if name == _PASSAGES:
            self.uses_passages = value
        if name == _REDACT:
            REDACTION.is_on = value
        if name == _LEVEL:
            self._values[_COMPONENTS] = {**self._values[_COMPONENTS], "verbosity": value}
        elif name == _COMPONENTS:
            self._values[_LEVEL] = value["verbosity"]
        if name in (_LEVEL, _COMPONENTS):
            _apply(self._values[_COMPONENTS])


def _apply(tree: Verbosity) -> None:
    """Have the log's components write as much as a value of ``logComponentVerbosity`` says."""
    set_level(_level(tree["verbosity"]))
    for logger, verbosity in verbosities(tree).items():
        set_component_level(logger, None if verbosity == INHERITED else _level(verbosity))


def _level(verbosity: int) -> str:
    return "debug" if verbosity > 0 else "info"
