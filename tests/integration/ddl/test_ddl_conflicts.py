"""Two DDL operations on one collection, started at once through two routers: each waits, joins, or is refused.

Afterwards the documents are the result of the successful operations, and the catalog and the shards agree.
"""

from concurrent.futures import ThreadPoolExecutor
from itertools import count
from threading import Barrier

import pytest
from pymongo.errors import OperationFailure

from tests.integration.ddl_operations import NO_CODE, OPERATIONS, REFUSALS, Operation, held, possible, prepare
from tests.local_cluster import Client

_numbers = count(1)


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
@pytest.mark.parametrize("second", OPERATIONS)
@pytest.mark.parametrize("first", OPERATIONS)
def test_two_operations_at_once(routers: tuple[Client, Client], first: str, second: str) -> None:
    db, start = f"conflicts_{next(_numbers)}", Barrier(2)
    prepare(routers[0], db)
    try:
        with ThreadPoolExecutor(2) as pool:
            running = [
                pool.submit(refused, OPERATIONS[name], router, db, start)
                for name, router in zip((first, second), routers, strict=True)
            ]
            codes = [each.result(120) for each in running]
    finally:
        if "block writes" in (first, second):
            routers[0].admin.command({"setUserWriteBlockMode": 1, "global": False})
    assert set(codes) <= REFUSALS | {0}, codes
    if not {first, second} <= {"move", "abort resharding", "commit resharding", "clean up resharding"}:
        assert 0 in codes or "move" in (first, second)
    outcomes = possible([name for name, code in zip((first, second), codes, strict=True) if code == 0])
    for router in routers:
        assert held(router, db) in outcomes, codes
    check_sound(routers, db)
    routers[0].drop_database(db)


def check_sound(routers: tuple[Client, Client], db: str) -> None:
    """The catalog and the shards agree, and so do the routers; migrations are allowed unless a user forbade them."""
    if routers[0].config["collections"].count_documents({"_id": {"$regex": f"^{db}\\."}}):
        assert routers[0].config.databases.find_one({"_id": db}) is not None
    routers[0].admin.command("enableSharding", db)
    assert routers[0][db].command("checkMetadataConsistency", 1, checkIndexes=True)["cursor"]["firstBatch"] == []
    entries = routers[0].config["collections"].find({"_id": {"$regex": f"^{db}\\."}})
    assert all(entry.get("allowMigrations", True) for entry in entries)
    for name in ("c", "d", "e", "u"):
        routers[1][db][name].insert_one({"a": -1})
        assert routers[0][db][name].count_documents({"a": -1}) == 1
