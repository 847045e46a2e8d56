"""Checks of the state after any change of a collection or database, however often it was interrupted."""

from collections.abc import Iterator
from typing import Any, Final

from tests.ddl.changes import THINGS, Change
from tests.integration.sharded import CATALOG_OPTIONS, LOWER, UPPER, chunks
from tests.integration.waiting import eventually
from tests.migration.fault_cluster import FaultCluster
from tests.migration.invariants import check_collection, wait_clean
from tests.migration.writers import Writers

CLEAN_SECONDS_MAX: Final = 60.0

COLLECTIONS: Final = ("system.sharding_ddl_coordinators", "localRenameParticipants")
"""Collections of ``config`` that have documents on a shard only during a change, besides the ones for migrations."""


def check_outcome(cluster: FaultCluster, change: Change, writers: Writers) -> None:
    """Check a change that a client has been told is made, and that nothing is left of it.

    Raises:
        AssertionError: it is not whole; a document, critical section or lock is left; migrations are forbidden; or a
            write of another client is lost or doubled.
    """
    writers.retry_kept()
    wait_nothing_left(cluster)
    for index in range(len(cluster.router_addresses)):
        found = cluster.router(index)[change.writers_db].command("checkMetadataConsistency", 1, checkIndexes=True)
        assert found["cursor"]["firstBatch"] == []
    # The second router has learned of the change only as far as it was needed.
    change.check(cluster.router(1))
    change.undo(cluster.router(0))
    check_migrations_allowed(cluster, change.db)
    namespace = f"{change.writers_db}.{THINGS}"
    check_collection(cluster, namespace, writers.model)
    move_a_chunk(cluster, namespace)
    check_collection(cluster, namespace, writers.model)


def wait_nothing_left(cluster: FaultCluster) -> None:
    """Wait until no shard has a document of a change or of a migration, and none shows a coordinator.

    Raises:
        AssertionError: one still has, or does.
    """

    def left() -> Iterator[tuple[str, list[Any]]]:
        for shard in cluster.running.shards:
            mongod = cluster.client(f"{shard}.{cluster.primary_index(shard)}.mongod")
            for name in COLLECTIONS:
                yield f"{shard} {name}", list(mongod.get_database("config", CATALOG_OPTIONS)[name].find())
            operations = cluster.client(cluster.primary_daemon(shard)).admin.aggregate([{"$currentOp": {}}])
            found = [each for each in operations if str(each.get("desc", "")).endswith("Coordinator")]
            yield f"{shard} $currentOp", [each for each in found if "originatingCommand" not in each]

    def description() -> str:
        return ", ".join(f"{name}: {documents}" for name, documents in left() if documents)

    eventually(lambda: not description(), within=CLEAN_SECONDS_MAX, what="nothing is left")
    wait_clean(cluster)


def check_migrations_allowed(cluster: FaultCluster, db: str) -> None:
    """Check that the migrations of no collection are forbidden.

    Raises:
        AssertionError: migrations of a collection are forbidden.
    """
    for entry in cluster.router().config["collections"].find({"_id": {"$regex": f"^{db}\\."}}):
        assert entry.get("allowMigrations", True), entry
        assert entry.get("permitMigrations", True), entry


def move_a_chunk(cluster: FaultCluster, namespace: str) -> None:
    """Move the first chunk of a collection to the other shard."""
    first = chunks(cluster.router(), namespace)[0]
    to = UPPER if first["shard"] == LOWER else LOWER
    cluster.router(1).admin.command("moveChunk", namespace, bounds=[first["min"], first["max"]], to=to)
