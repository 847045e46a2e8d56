"""A request that equals a change in progress waits for its result, also through another router; others are refused.

The shard's part is the same for all kinds; only the compared arguments differ.
"""

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from typing import Final

import pytest
from pymongo.database import Database
from pymongo.errors import OperationFailure

from shardwright.shardd.context.fail_point_names import HANG_IN_DDL_COORDINATOR
from shardwright.wire.error_codes import ErrorCode
from tests.ddl.places import BEGIN
from tests.fail_points import fail_point
from tests.integration.ddl_operations import NO_CODE
from tests.integration.sharded import LOWER, UPPER, Document, shard_by_range
from tests.local_cluster import Client, RunningCluster

_numbers = count(1)

JOIN_SECONDS_MAX: Final = 60.0
WAIT_MS: Final = 500

DB: Final = "<db>"
"""Stands for the name of the database in commands."""


@dataclass(frozen=True)
class Kind:
    """A kind of change.

    Attributes:
        operation_type: the coordinator's.
        command: a client's command.
        other: fields that make it another change; none if there is no other one.
        is_admin: whether it runs on the admin database.
    """

    operation_type: str
    command: Document
    other: Document | None = None
    is_admin: bool = True


KINDS: Final = {
    "shardCollection": Kind(
        "createCollection_V2",
        {"shardCollection": f"{DB}.fresh", "key": {"a": 1, "b": 1}},
        {"key": {"b": 1, "a": 1}},  # which has the same fields
    ),
    "drop": Kind("dropCollection", {"drop": "things"}, is_admin=False),
    "dropDatabase": Kind("dropDatabase", {"dropDatabase": 1}, is_admin=False),
    "collMod": Kind(
        "collMod_V2", {"collMod": "things", "validationLevel": "moderate"}, {"validationLevel": "off"}, is_admin=False
    ),
    "renameCollection": Kind(
        "renameCollection", {"renameCollection": f"{DB}.things", "to": f"{DB}.renamed"}, {"to": f"{DB}.elsewhere"}
    ),
    "refineCollectionShardKey": Kind(
        "refineCollectionShardKey",
        {"refineCollectionShardKey": f"{DB}.things", "key": {"key": 1, "a": 1}},
        {"key": {"key": 1, "a": 1, "b": 1}},
    ),
    "setAllowMigrations": Kind(
        "setAllowMigrations",
        {"setAllowMigrations": f"{DB}.things", "allowMigrations": False},
        {"allowMigrations": True},
    ),
    "movePrimary": Kind("movePrimary", {"movePrimary": DB, "to": UPPER}, {"to": LOWER}),
    "reshardCollection": Kind(
        "reshardCollection",
        {"reshardCollection": f"{DB}.things", "key": {"a": 1}, "numInitialChunks": 1},
        {"numInitialChunks": 2},
    ),
}


class Request(threading.Thread):
    """A command in a thread of its own.

    Attributes:
        code: the code of its error; None until it has ended, and 0 if it succeeds.
    """

    def __init__(self, database: Database[Document], command: Document) -> None:
        super().__init__()
        self._database, self._command = database, command
        self.code: int | None = None
        self.start()

    def run(self) -> None:
        """Run it."""
        self.code = code(self._database, self._command)


def code(database: Database[Document], command: Document) -> int:
    """Run a command; returns the code of its error, 0 if there is none."""
    try:
        database.command(command)
    except OperationFailure as failure:
        return failure.code or NO_CODE
    return 0


def coordinators(shard: Client, db: str) -> list[Document]:
    """The coordinators that work on a database or wait for its locks."""
    shown = {"type": "op", "desc": {"$regex": "Coordinator$"}, "ns": {"$regex": f"^{db}[.]"}}
    return list(shard.admin.aggregate([{"$currentOp": {"allUsers": True}}, {"$match": shown}]))


@pytest.fixture
def db(routers: tuple[Client, Client]) -> Iterator[str]:
    """The name of a database with a collection on both shards, cached by both routers."""
    name = f"joined_{next(_numbers)}"
    things = shard_by_range(routers[0][name], "things")
    things.create_index([("key", 1), ("a", 1), ("b", 1)])
    things.insert_many({"key": key, "a": key, "b": key} for key in (1, 999))
    assert routers[1][name].things.count_documents({}) == 2
    yield name
    routers[0].drop_database(name)


@pytest.mark.matrix(share=0.5)
@pytest.mark.parametrize("name", KINDS)
def test_an_equal_request_joins(name: str, db: str, routers: tuple[Client, Client], cluster: RunningCluster) -> None:
    kind = KINDS[name]
    databases = [router["admin" if kind.is_admin else db] for router in routers]

    def command(**changed: object) -> Document:
        fields = {**kind.command, **changed}
        return {field: value.replace(DB, db) if isinstance(value, str) else value for field, value in fields.items()}

    with cluster.direct(f"{LOWER}.0.shardd") as shard:
        data = {"operationType": kind.operation_type, "at": BEGIN}
        with fail_point(shard, HANG_IN_DDL_COORDINATOR, **data) as point:
            first = Request(databases[0], command())
            point.wait_entered()
            # Only the wait of the second request ends. It has not been refused, and begins nothing.
            assert code(databases[1], command(maxTimeMS=WAIT_MS)) == ErrorCode.MaxTimeMSExpired
            if kind.other is not None:
                refused = code(databases[1], command(**kind.other))
                assert refused == ErrorCode.ConflictingOperationInProgress
            second = Request(databases[1], command())
            second.join(WAIT_MS / 1000)
            assert (first.code, second.code) == (None, None)
            assert len(coordinators(shard, db)) == 1
            assert point.turn_off() == 1
        for each in (first, second):
            each.join(JOIN_SECONDS_MAX)
    assert (first.code, second.code) == (0, 0)
