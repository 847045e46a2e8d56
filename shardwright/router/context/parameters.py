"""The parameters of ``getParameter`` and ``setParameter``, including the verbosity of log components."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from bson.code import Code

from shardwright.daemon.log_formats import REDACTION
from shardwright.daemon.logs import set_component_level, set_level
from shardwright.daemon.option_values import parse_boolean
from shardwright.sharding.bson_text import document_text
from shardwright.sharding.logical_sessions import REFRESH_MILLISECONDS, SESSIONS_MAX
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.limits import LOGICAL_SESSION_TIMEOUT_MINUTES
from shardwright.wire.passages import EPOCH
from shardwright.wire.rawbson import encode_document, type_name_of
from shardwright.wire.transport.cluster_auth import UNDEFINED, ClusterAuth

INHERITED: Final = -1
"""The verbosity of a component that inherits it from its parent component."""

_COMPONENT_TREE: Final = (
    *("accessControl", "assert", "command", "control", "executor", "geo", "index", "network.asio", "network.bridge"),
    *("network.connectionPool", "processHealth", "query", "replication.election", "replication.heartbeats"),
    *("replication.initialSync", "replication.rollback", "sharding.rangeDeleter", "sharding.shardingCatalogRefresh"),
    *("sharding.migration", "sharding.reshard", "sharding.migrationPerf", "storage.recovery", "storage.journal"),
    *("storage.wt.wtBackup", "storage.wt.wtCheckpoint", "storage.wt.wtCompact", "storage.wt.wtEviction"),
    *("storage.wt.wtHS", "storage.wt.wtRecovery", "storage.wt.wtRTS", "storage.wt.wtSalvage", "storage.wt.wtTiered"),
    *("storage.wt.wtTimestamp", "storage.wt.wtTransaction", "storage.wt.wtVerify", "storage.wt.wtWriteLog", "write"),
    *("ftdc", "tracking", "transaction", "tenantMigration", "test"),
)

Verbosity = dict[str, Any]


def default_verbosity() -> Verbosity:
    """Return the tree with default verbosity everywhere."""
    tree: Verbosity = {"verbosity": 0}
    for path in _COMPONENT_TREE:
        node = tree
        for name in path.split("."):
            node = node.setdefault(name, {"verbosity": INHERITED})
    return tree


def changed_verbosity(tree: Verbosity, changes: Any) -> Verbosity:  # noqa: ANN401 - whatever a client sent
    """Apply a ``setParameter``, which names only the components to change; return the new tree.

    Raises:
        CommandError: TypeMismatch; BadValue, an unknown component, or a value that is neither number nor document.
    """
    if not isinstance(changes, Mapping):
        raise CommandError(
            ErrorCode.TypeMismatch,
            f"log component verbosity is not a BSON object: logComponentVerbosity: {changes}",
        )
    changed = _changed(tree, changes, "default")
    # The root has nothing to inherit from, so clearing its verbosity restores the one at start.
    return {**changed, "verbosity": max(changed["verbosity"], 0)}


def _changed(tree: Verbosity, changes: Mapping[str, Any], component: str) -> Verbosity:
    result = dict(tree)
    for name, value in changes.items():
        path = f"{component}.{name}"
        if name == "verbosity" and _is_number(value):
            result[name] = max(int(value), INHERITED)
        elif name not in tree or name == "verbosity":
            raise CommandError(ErrorCode.BadValue, f"Invalid component name {path}")
        elif isinstance(value, Mapping):
            result[name] = _changed(tree[name], value, name)
        elif _is_number(value):
            result[name] = {**tree[name], "verbosity": max(int(value), INHERITED)}
        else:
            raise CommandError(ErrorCode.BadValue, f"Invalid type {type_name_of(value)}for component {path}")
    return result


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


LOGGERS: Final[Mapping[str, tuple[str, ...]]] = {
    "accessControl": ("daemon.audit", "router.access"),
    "command": ("router.commands", "router.operations"),
    "control": ("daemon.logs", "daemon.run", "daemon.signals", "router.sessions", "router.workers"),
    "network": ("daemon.http", "daemon.tls", "wire.disconnects", "wire.monitor", "wire.reactor", "wire.server"),
    "network.connectionPool": ("wire.abandoned", "wire.newcomers", "wire.pools"),
    "query": ("router.change_streams", "router.cursors", "wire.cursor"),
    "sharding": ("config_servers", "router.clock", "router.oplogs", "router.shards"),
    "sharding.shardingCatalogRefresh": ("router.routing",),
}
"""The loggers of each component; all others have the default verbosity."""


def verbosities(tree: Verbosity) -> dict[str, int]:
    """Return the verbosity of each logger in `LOGGERS`; `INHERITED` for the default.

    Args:
        tree: the value of ``logComponentVerbosity``.
    """
    return {logger: _verbosity(tree, component) for component, loggers in LOGGERS.items() for logger in loggers}


def _verbosity(tree: Verbosity, component: str) -> int:
    """Return the verbosity of the innermost component on a path with a verbosity of its own."""
    found, node = INHERITED, tree
    for name in component.split("."):
        node = node[name]
        found = found if node["verbosity"] == INHERITED else node["verbosity"]
    return found


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter.

    Attributes:
        check: converts a client's value to the stored one; None for a parameter that is fixed at start.
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
_SHAPES: Final = "queryStatsShapesMax"
_SHAPES_DEFAULT: Final = 500


def _mode_name(value: Any) -> Any:  # noqa: ANN401 - whatever a client sent
    if isinstance(value, Code):
        element = document_text(encode_document({_CLUSTER_AUTH_MODE: value}))[2:-2]
        shown = f"Unsupported type {type_name_of(value)} (value: '{element}')"
        raise CommandError(ErrorCode.BadValue, f"{shown} for setParameter: {_CLUSTER_AUTH_MODE}")
    return value


PARAMETERS: Final[Mapping[str, Parameter]] = {
    _LEVEL: Parameter(0, _whole_number(0, 5), parse=int),
    _COMPONENTS: Parameter(None, dict),
    "cursorTimeoutMillis": Parameter(600_000, _whole_number(1, _INT32_MAX), parse=int),
    "enableTimeoutOfInactiveSessionCursors": Parameter(False, bool, parse=parse_boolean),
    "mongosShutdownTimeoutMillisForSignaledShutdown": Parameter(15_000, _whole_number(0, _INT32_MAX), parse=int),
    "enableTestCommands": Parameter(False, parse=parse_boolean),
    _REQUIRE_API_VERSION: Parameter(False, bool, parse=parse_boolean),
    _PASSAGES: Parameter(True, bool, parse=parse_boolean),
    _SHAPES: Parameter(_SHAPES_DEFAULT, _whole_number(0, 10_000), parse=int),
    _REDACT: Parameter(False, bool, parse=parse_boolean),
    "quiet": Parameter(False, bool, parse=parse_boolean),
    _CLUSTER_AUTH_MODE: Parameter(UNDEFINED, _mode_name),
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
"""Parameters by name, with the names and defaults of mongos 6.0, which has no ``enablePassages`` and no
``queryStatsShapesMax``."""


def parse_parameter(text: str) -> tuple[str, str]:
    """Return the name and the checked text in a command line's ``NAME=VALUE``.

    Raises:
        ValueError: an unknown parameter or an invalid value, with a message for the user.
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
    """The parameter values of this process.

    Args:
        cluster_auth: the authentication that ``clusterAuthMode`` changes.
        at_start: the values given at start, as text that `parse_parameter` has checked.

    Attributes:
        uses_passages: the value of ``enablePassages``.
        query_shapes_max: the value of ``queryStatsShapesMax``.
        requires_api_version: the value of ``requireApiVersion``, a copy for fast access by every operation.
    """

    def __init__(self, cluster_auth: ClusterAuth, at_start: Mapping[str, str]) -> None:
        self._cluster_auth = cluster_auth
        self._values = {name: parameter.default for name, parameter in PARAMETERS.items()}
        self._values[_COMPONENTS] = default_verbosity()
        self._values[_REDACT] = REDACTION.is_on
        self._values[_CLUSTER_AUTH_MODE] = cluster_auth.mode_name
        self.requires_api_version = False
        self.uses_passages = True
        self.query_shapes_max = _SHAPES_DEFAULT
        for name, text in at_start.items():
            self._keep(name, _parsed(name, text))

    def __getitem__(self, name: str) -> Any:  # noqa: ANN401 - parameters are of all types
        """Return the value of a parameter."""
        return self._values[name]

    def all(self) -> dict[str, Any]:
        """Return all values by name."""
        return dict(self._values)

    def set(self, name: str, value: Any) -> Any:  # noqa: ANN401 - parameters are of all types
        """Change a parameter that is settable at runtime; return its old value."""
        check = PARAMETERS[name].check
        assert check is not None, name
        old = self._values[name]
        new = changed_verbosity(old, value) if name == _COMPONENTS else check(value)
        if name == _CLUSTER_AUTH_MODE:
            self._cluster_auth.change_mode(new)
        self._keep(name, new)
        return old

    def change_given(self, before: Mapping[str, str], after: Mapping[str, str]) -> tuple[str, ...]:
        """Apply the changed parameters of a configuration that was read again.

        Args:
            before: the previous parameters, as text that `parse_parameter` has checked.

        Returns:
            The names of parameters whose change requires a restart.
        """
        different = {name for name in {*before, *after} if before.get(name) != after.get(name)}
        waiting = {name for name in different if name not in after or PARAMETERS[name].check is None}
        for name in different - waiting:
            self._keep(name, _parsed(name, after[name]))
        return tuple(sorted(waiting))

    def _keep(self, name: str, value: Any) -> None:  # noqa: ANN401 - parameters are of all types
        self._values[name] = value
        EPOCH.bump()
        if name == _REQUIRE_API_VERSION:
            self.requires_api_version = value
        if name == _PASSAGES:
            self.uses_passages = value
        if name == _SHAPES:
            self.query_shapes_max = value
        if name == _REDACT:
            REDACTION.is_on = value
        if name == _LEVEL:
            self._values[_COMPONENTS] = {**self._values[_COMPONENTS], "verbosity": value}
        elif name == _COMPONENTS:
            self._values[_LEVEL] = value["verbosity"]
        if name in (_LEVEL, _COMPONENTS):
            _apply(self._values[_COMPONENTS])


def _apply(tree: Verbosity) -> None:
    """Set the levels of the loggers according to ``logComponentVerbosity``."""
    set_level(_level(tree["verbosity"]))
    for logger, verbosity in verbosities(tree).items():
        set_component_level(logger, None if verbosity == INHERITED else _level(verbosity))


def _level(verbosity: int) -> str:
    return "debug" if verbosity > 0 else "info"
