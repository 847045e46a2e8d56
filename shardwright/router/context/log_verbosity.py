"""The parameter ``logComponentVerbosity``, as a tree of MongoDB's log components."""

from collections.abc import Mapping
from typing import Any, Final

from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.type_names import type_name_of

INHERITED: Final = -1
"""The verbosity of a component that has that of the component above."""

_COMPONENTS: Final = (
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
    """The tree in which everything has the default."""
    tree: Verbosity = {"verbosity": 0}
    for path in _COMPONENTS:
        node = tree
        for name in path.split("."):
            node = node.setdefault(name, {"verbosity": INHERITED})
    return tree


def changed_verbosity(tree: Verbosity, changes: Any) -> Verbosity:  # noqa: ANN401 - whatever a client sent
    """The tree after ``setParameter``, which names just the components that it changes.

    Raises:
        CommandError: TypeMismatch; BadValue, there is no such component, or its value is neither number nor document.
    """
    if not isinstance(changes, Mapping):
        raise CommandError(
            ErrorCode.TypeMismatch,
            f"log component verbosity is not a BSON object: logComponentVerbosity: {changes}",
        )
    return _changed(tree, changes, "default")


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
