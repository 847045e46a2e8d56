"""Two DDL operations on one collection, started at once through two routers: each waits, joins, or is refused."""

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import combinations_with_replacement, count
from threading import Barrier
from typing import Any, Final

import pytest
from pymongo.errors import OperationFailure

from shardwright.wire.error_codes import ErrorCode
from tests.integration.sharded import LOWER, UPPER
from tests.local_cluster import Client

_numbers = count(1)

NO_CODE: Final = -1
"""Errors of mongos's oldest commands: of ``moveChunk`` by a field that is no part of the shard key any more."""

REFUSALS: Final = frozenset(
    {
        NO_CODE,
        ErrorCode.ConflictingOperationInProgress,
        ErrorCode.NamespaceNotFound,
        ErrorCode.NamespaceExists,
        ErrorCode.NamespaceNotSharded,
        ErrorCode.AlreadyInitialized,
        ErrorCode.IndexNotFound,
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
    }
)
"""What an operation may be answered if the other one has come first, or is under way."""

Operation = Callable[[Client, str], object]


def admin(command: str, namespace: str = "c", **arguments: Any) -> Operation:  # noqa: ANN401 - arguments of any type
    """A command on the admin database about a collection."""
    return lambda client, db: client.admin.command(command, f"{db}.{namespace}", **arguments)


def rename(source: str, target: str) -> Operation:
    """A rename that replaces what has the new name."""
    return lambda client, db: client.admin.command(
        "renameCollection", f"{db}.{source}", to=f"{db}.{target}", dropTarget=True
    )


OPERATIONS: Final[Mapping[str, Operation]] = {
    "create": lambda client, db: client[db].command("create", "c"),
    "shard": admin("shardCollection", key={"a": 1}),
    "shard other": admin("shardCollection", "u", key={"a": 1}),
    "drop": lambda client, db: client[db].command("drop", "c"),
    "drop database": lambda client, db: client[db].command("dropDatabase"),
    "modify": lambda client, db: client[db].command("collMod", "c", validationLevel="moderate"),
    "modify index": lambda client, db: client[db].command("collMod", "c", index={"name": "b_1", "hidden": True}),
    "rename": rename("c", "d"),
    "rename away": rename("c", "e"),
    "rename over": rename("u", "c"),
    "refine": admin("refineCollectionShardKey", key={"a": 1, "b": 1}),
    "forbid": admin("setAllowMigrations", allowMigrations=False),
    "index": lambda client, db: client[db].command("createIndexes", "c", indexes=[{"key": {"i": 1}, "name": "i_1"}]),
    "drop index": lambda client, db: client[db].command("dropIndexes", "c", index="b_1"),
    "reshard": admin("reshardCollection", key={"b": 1, "a": 1}, numInitialChunks=2),
    "move primary": lambda client, db: client.admin.command("movePrimary", db, to=UPPER),
    "move": lambda client, db: client.admin.command("moveChunk", f"{db}.c", find={"a": 0}, to=UPPER),
}


def prepared(client: Client) -> str:
    """A database with a sharded collection ``c`` on both shards, a sharded one ``d``, and an unsharded one ``u``."""
    db = f"conflicts_{next(_numbers)}"
    client.admin.command("enableSharding", db, primaryShard=LOWER)
    for name in "cd":
        client.admin.command("shardCollection", f"{db}.{name}", key={"a": 1})
        client.admin.command("split", f"{db}.{name}", middle={"a": 10})
        client.admin.command("moveChunk", f"{db}.{name}", find={"a": 10}, to=UPPER)
    client[db].c.create_index([("a", 1), ("b", 1)])
    client[db].c.create_index("b")
    client[db].c.insert_many({"a": a, "b": a % 3} for a in range(20))
    client[db].u.create_index("a")
    client[db].u.insert_many({"a": a} for a in range(5))
    return db


def refused(operation: Operation, client: Client, db: str, start: Barrier) -> int:
    """Run an operation when both are ready; returns the code of the error, 0 if there is none."""
    client.admin.command("ping")
    start.wait(30)
    try:
        operation(client, db)
    except OperationFailure as failure:
        return NO_CODE if failure.code is None else failure.code
    return 0


@pytest.mark.matrix(share=0.5)
@pytest.mark.parametrize(("first", "second"), [*combinations_with_replacement(OPERATIONS, 2)])
def test_two_operations_at_once(routers: tuple[Client, Client], first: str, second: str) -> None:
    db, start = prepared(routers[0]), Barrier(2)
    with ThreadPoolExecutor(2) as pool:
        running = [
            pool.submit(refused, OPERATIONS[name], router, db, start)
            for name, router in zip((first, second), routers, strict=True)
        ]
        codes = [each.result(120) for each in running]
    assert set(codes) <= REFUSALS | {0}, codes
    if "move" not in (first, second):
        assert 0 in codes
    check_sound(routers, db)
    routers[0].drop_database(db)


def check_sound(routers: tuple[Client, Client], db: str) -> None:
    """The catalog and the shards agree, and so do the routers; migrations are allowed unless a user forbade them."""
    routers[0].admin.command("enableSharding", db)
    assert routers[0][db].command("checkMetadataConsistency", 1, checkIndexes=True)["cursor"]["firstBatch"] == []
    entries = routers[0].config["collections"].find({"_id": {"$regex": f"^{db}\\."}})
    assert all(entry.get("allowMigrations", True) for entry in entries)
    for name in ("c", "d", "e", "u"):
        documents = [sorted(each["a"] for each in router[db][name].find()) for router in routers]
        assert documents[0] == documents[1]
        routers[1][db][name].insert_one({"a": -1})
        assert routers[0][db][name].count_documents({"a": -1}) == 1
