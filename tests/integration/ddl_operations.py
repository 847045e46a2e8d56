"""Kinds of DDL operations, what each does to the documents of a small database, and how it may be refused."""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from itertools import permutations
from typing import Any, Final

from shardwright.wire.error_codes import ErrorCode
from tests.integration.sharded import LOWER, UPPER
from tests.local_cluster import Client

NO_CODE: Final = -1
NO_TIME_SERIES: Final = 6201808
"""Errors of mongos's oldest commands: of ``moveChunk`` by a field that is not part of the shard key any more."""

REFUSALS: Final = frozenset(
    {
        NO_CODE,
        NO_TIME_SERIES,
        ErrorCode.ConflictingOperationInProgress,
        ErrorCode.NamespaceNotFound,
        ErrorCode.NamespaceExists,
        ErrorCode.NamespaceNotSharded,
        ErrorCode.AlreadyInitialized,
        ErrorCode.IndexNotFound,
        ErrorCode.Interrupted,  # a move ends when an index of its collection changes
        ErrorCode.InvalidOptions,
        ErrorCode.CannotDropShardKeyIndex,
        ErrorCode.IllegalOperation,
        ErrorCode.BackgroundOperationInProgressForNamespace,
        ErrorCode.IndexBuildAborted,
        ErrorCode.CollectionUUIDMismatch,
        ErrorCode.StaleConfig,
        ErrorCode.DatabaseDropPending,
        ErrorCode.CannotImplicitlyCreateCollection,
        ErrorCode.MovePrimaryInProgress,
        ErrorCode.ReshardCollectionInProgress,
        ErrorCode.NoSuchReshardCollection,
        ErrorCode.ReshardCollectionCommitted,
        ErrorCode.ReshardCollectionAborted,
        ErrorCode.UserWritesBlocked,
    }
)
"""Errors of an operation if the other one has come first, or is in progress."""

Operation = Callable[[Client, str], object]
Held = Mapping[str, tuple[int, ...]]
"""The documents of each collection, by their field ``a``; collections without documents are left out."""

HELD: Final[Held] = {"c": tuple(range(20)), "u": tuple(range(5)), "s": tuple(range(8))}
"""The documents at the beginning. ``d`` is empty."""


def admin(command: str, namespace: str = "c", **arguments: Any) -> Operation:  # noqa: ANN401 - arguments of any type
    """A command on the admin database about a collection."""
    return lambda client, db: client.admin.command(command, f"{db}.{namespace}", **arguments)


def rename(source: str, target: str) -> Operation:
    """A rename that replaces the collection with the new name."""
    return lambda client, db: client.admin.command(
        "renameCollection", f"{db}.{source}", to=f"{db}.{target}", dropTarget=True
    )


def on_database(command: str, name: Any = "c", **arguments: Any) -> Operation:  # noqa: ANN401 - arguments of any type
    """A command on the database of the collections."""
    return lambda client, db: client[db].command(command, name, **arguments)


OPERATIONS: Final[Mapping[str, Operation]] = {
    "create": on_database("create"),
    "shard": admin("shardCollection", key={"a": 1}),
    "shard other": admin("shardCollection", "u", key={"a": 1}),
    "drop": on_database("drop"),
    "drop database": on_database("dropDatabase", 1),
    "enable sharding": lambda client, db: client.admin.command("enableSharding", db),
    "modify": on_database("collMod", validationLevel="moderate"),
    "modify index": on_database("collMod", index={"name": "b_1", "hidden": True}),
    "rename": rename("c", "d"),
    "rename away": rename("c", "e"),
    "rename over": rename("u", "c"),
    "refine": admin("refineCollectionShardKey", key={"a": 1, "b": 1}),
    "forbid": admin("setAllowMigrations", allowMigrations=False),
    "allow": admin("setAllowMigrations", allowMigrations=True),
    "index": on_database("createIndexes", indexes=[{"key": {"i": 1}, "name": "i_1"}]),
    "drop index": on_database("dropIndexes", index="b_1"),
    "reshard": admin("reshardCollection", key={"b": 1, "a": 1}, numInitialChunks=2),
    "abort resharding": admin("abortReshardCollection"),
    "commit resharding": admin("commitReshardCollection"),
    "clean up resharding": admin("cleanupReshardCollection"),
    "move primary": lambda client, db: client.admin.command("movePrimary", db, to=UPPER),
    "move": admin("moveChunk", find={"a": 0}, to=UPPER),
    "shard series": admin("shardCollection", "s", key={"sensor": 1}),
    "modify series": on_database("collMod", "s", timeseries={"granularity": "minutes"}),
    "drop series": on_database("drop", "s"),
    "block writes": lambda client, _: client.admin.command({"setUserWriteBlockMode": 1, "global": True}),
}


def prepare(client: Client, db: str) -> None:
    """Create ``c`` and ``d``, which are sharded and on both shards, the unsharded ``u``, and the time series ``s``."""
    client.admin.command("enableSharding", db, primaryShard=LOWER)
    for name in "cd":
        client.admin.command("shardCollection", f"{db}.{name}", key={"a": 1})
        client.admin.command("split", f"{db}.{name}", middle={"a": 10})
        client.admin.command("moveChunk", f"{db}.{name}", find={"a": 10}, to=UPPER)
    client[db].c.create_index([("a", 1), ("b", 1)])
    client[db].c.create_index("b")
    client[db].c.insert_many({"a": a, "b": a % 3} for a in HELD["c"])
    client[db].u.create_index("a")
    client[db].u.insert_many({"a": a} for a in HELD["u"])
    client[db].command("create", "s", timeseries={"timeField": "at", "metaField": "sensor"})
    client[db].s.create_index("sensor")
    client[db].s.insert_many({"at": datetime(2024, 1, 1, a), "sensor": a % 2, "a": a} for a in HELD["s"])


def held(client: Client, db: str) -> Held:
    """The documents that there are, as a router shows them."""
    found = {name: tuple(sorted(each["a"] for each in client[db][name].find())) for name in "cdeus"}
    return {name: documents for name, documents in found.items() if documents}


def possible(done: Sequence[str]) -> list[Held]:
    """Return the possible results of operations that succeeded in any order; one may have joined an equal one.

    Args:
        done: names of the operations.
    """
    outcomes = [_after(order) for order in permutations(done)]
    if len(set(done)) < len(done):
        outcomes.append(_after(tuple(set(done))))
    return [each for each in outcomes if each is not None]


def _after(order: Sequence[str]) -> Held | None:
    """Return the result of operations in this order; None if one of them could not have succeeded."""
    there = dict(HELD)
    names = {*HELD, "d"}
    for operation in order:
        if operation in _RENAMES:
            source, target = _RENAMES[operation]
            if source not in names:
                return None
            names = names - {source} | {target}
            documents = there.pop(source, ())
            there[target] = documents
        for name in _GONE.get(operation, ()):
            there.pop(name, None)
            names.discard(name)
        names.update(_CREATED.get(operation, ()))
    return {name: documents for name, documents in there.items() if documents}


_RENAMES: Final = {"rename": ("c", "d"), "rename away": ("c", "e"), "rename over": ("u", "c")}
_GONE: Final[Mapping[str, Sequence[str]]] = {"drop": "c", "drop series": "s", "drop database": "cdeus"}
_CREATED: Final[Mapping[str, Sequence[str]]] = {"create": "c", "shard": "c", "shard other": "u", "index": "c"}
