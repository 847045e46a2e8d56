"""A rename or a resharding is stopped in each of its phases, and another change begins there through another router.

The other one waits, or is refused; both leave a catalog and shards that agree. Clients write all the time.
"""

import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import count
from threading import Event
from typing import Final

import pytest
from pymongo.errors import OperationFailure

from shardwright.shardd.context.fail_point_names import HANG_IN_DDL_COORDINATOR
from shardwright.wire.error_codes import ErrorCode
from tests.fail_points import FailPoint, fail_point
from tests.integration.ddl_operations import NO_CODE, REFUSALS, Operation, admin
from tests.integration.sharded import LOWER, UPPER, Documents, shard_by_range
from tests.integration.waiting import eventually
from tests.local_cluster import Client, RunningCluster
from tests.resharding.resharded import LAST, new_collection, split_parts
from tests.server_parameters import server_parameter

_numbers = count(1)

HELD_SECONDS: Final = 0.3
"""Longer than it takes the other change to come as far as it can."""

PHASES: Final = (
    *(
        f"rename: {phase}"
        for phase in ("freezeMigrations", "blockCRUDAndRename", "renameMetadata", "unblockCRUD", "end")
    ),
    "reshard: reshardingPauseRecipientBeforeCloning",
    "reshard: reshardingPauseRecipientDuringOplogApplication",
    "reshard: reshardingPauseBeforeBlockingWrites",
    "reshard: reshardingPauseBeforeHold",
    "reshard: reshardingPauseBeforeCommit",
    "reshard: reshardingPauseAfterCommit",
)

LONG: Final[Mapping[str, Operation]] = {
    "rename": lambda client, db: client.admin.command("renameCollection", f"{db}.documents", to=f"{db}.renamed"),
    "reshard": lambda client, db: client.admin.command(
        "reshardCollection", f"{db}.documents", key={"other": 1}, _presetReshardedChunks=split_parts("other")
    ),
}

OTHERS: Final[Mapping[str, Operation]] = {
    "drop": lambda client, db: client[db].command("drop", "documents"),
    "drop the target": lambda client, db: client[db].command("drop", "renamed"),
    "drop database": lambda client, db: client[db].command("dropDatabase"),
    "rename": lambda client, db: client.admin.command("renameCollection", f"{db}.documents", to=f"{db}.elsewhere"),
    "rename to the target": lambda client, db: client.admin.command(
        "renameCollection", f"{db}.beside", to=f"{db}.renamed"
    ),
    "move primary": lambda client, db: client.admin.command("movePrimary", db, to=UPPER),
    "modify": lambda client, db: client[db].command("collMod", "documents", validationLevel="moderate"),
    "reshard": admin("reshardCollection", "documents", key={"other": 1, "key": 1}, numInitialChunks=2),
    "reshard beside": admin("reshardCollection", "beside", key={"b": 1}, numInitialChunks=2),
    "move": admin("moveChunk", "documents", find={"key": 0}, to=UPPER),
    "index": lambda client, db: client[db].documents.create_index("another"),
}

NAMES: Final = ("documents", "renamed", "elsewhere")
"""Possible names of the collection at the end."""

LOSES: Final = frozenset({"drop", "drop the target", "drop database"})
"""After these, documents are gone that were written."""

REFUSED: Final = REFUSALS | {ErrorCode.ReshardCollectionAborted, 5808201}


@pytest.fixture(autouse=True)
def patient(cluster: RunningCluster) -> Iterator[None]:
    """A resharding that is held in its critical section is not aborted because of a timeout."""
    with (
        cluster.direct("config.0.mongod") as config,
        server_parameter(config, "reshardingCriticalSectionTimeoutMillis", 60_000),
    ):
        yield


@pytest.fixture
def collection(routers: tuple[Client, Client]) -> Iterator[Documents]:
    client, name = routers[0], f"in_phases_{next(_numbers)}"
    found = new_collection(client, name, LOWER)
    shard_by_range(client[name], "beside")
    client[name].beside.create_index("b")
    client[name].beside.insert_many({"key": key, "b": key} for key in (1, 999))
    yield found
    client.drop_database(name)


def code_of(operation: Operation, client: Client, db: str) -> int:
    """Run a change; returns the code of its error, 0 if there is none."""
    try:
        operation(client, db)
    except OperationFailure as failure:
        return NO_CODE if failure.code is None else failure.code
    return 0


@contextmanager
def stopped_in(cluster: RunningCluster, phase: str) -> Iterator[FailPoint]:
    """During the block, a long change that comes to a phase waits there."""
    kind, _, place = phase.partition(": ")
    name, shard, data = place, UPPER, {}
    if kind == "rename":
        name, shard, data = HANG_IN_DDL_COORDINATOR, LOWER, {"operationType": "renameCollection", "at": place}
    with cluster.direct(f"{shard}.0.shardd") as daemon, fail_point(daemon, name, **data) as point:
        yield point


class Inserts:
    """Clients that insert documents without a pause; all of them have to be acknowledged.

    Attributes:
        written: the ``_id`` of each that was.
    """

    def __init__(self) -> None:
        self.written: list[int] = []
        self._numbers = count()
        self._stop = Event()

    def insert(self, client: Client, db: str) -> None:
        """Insert documents until stopped."""
        while not self._stop.is_set():
            number = next(self._numbers)
            client[db].documents.insert_one({"_id": number, "key": number * 37 % LAST, "other": number * 91 % LAST})
            self.written.append(number)

    def wait_for_progress(self) -> None:
        """Wait for some more documents."""
        goal = len(self.written) + 20
        eventually(lambda: len(self.written) >= goal, what="clients insert")

    def stop(self) -> None:
        """Insert no more."""
        self._stop.set()


@pytest.mark.matrix(share=0.5)
@pytest.mark.parametrize("other", OTHERS)
@pytest.mark.parametrize("phase", PHASES)
def test_another_change_begins(
    cluster: RunningCluster, routers: tuple[Client, Client], collection: Documents, phase: str, other: str
) -> None:
    db, inserts = collection.database.name, Inserts()
    with ThreadPoolExecutor(4) as pool:
        inserting = [pool.submit(inserts.insert, router, db) for router in routers]
        try:
            inserts.wait_for_progress()
            with stopped_in(cluster, phase) as point:
                running = [pool.submit(code_of, LONG[phase.partition(":")[0]], routers[0], db)]
                point.wait_entered()
                running.append(pool.submit(code_of, OTHERS[other], routers[1], db))
                time.sleep(HELD_SECONDS)
            codes = [each.result(120) for each in running]
            inserts.wait_for_progress()
        finally:
            inserts.stop()
        for each in inserting:
            each.result(60)
    assert set(codes) <= REFUSED | {0}, codes
    for router in routers:
        found = [
            each["_id"] for name in NAMES for each in router[db][name].find({"other": {"$exists": True}}, {"_id": 1})
        ]
        assert len(found) == len(set(found))
        assert set(found) == set(inserts.written) or (other in LOSES and set(found) < set(inserts.written))
    check_sound(routers[0], db)


def check_sound(client: Client, db: str) -> None:
    """The catalog and the shards agree, nothing is left of a resharding, and migrations are allowed again."""
    client.admin.command("enableSharding", db)
    assert client[db].command("checkMetadataConsistency", 1, checkIndexes=True)["cursor"]["firstBatch"] == []
    assert list(client.config.reshardingOperations.find()) == []
    entries = client.config["collections"].find({"_id": {"$regex": f"^{db}\\."}})
    assert all(entry.get("allowMigrations", True) for entry in entries)
