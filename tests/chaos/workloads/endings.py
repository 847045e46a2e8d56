"""Checks after a workload: everything stored and shown is compared with the expectation."""

from collections.abc import Mapping

from tests.chaos.checkers.placement import check_found_by_key, check_placement
from tests.chaos.stage import Document, Stage
from tests.chaos.worlds import World
from tests.migration.invariants import Placement, check_collection, check_visible, wait_clean, wait_decided


def check_documents(stage: Stage, world: World, documents: Mapping[str, Document]) -> list[str]:
    """Check that each router shows exactly these documents, also by their keys, and each shard stores its own."""
    namespace = f"{stage.database}.{world.name}"
    try:
        check_visible(stage.cluster, namespace, documents)
        wait_clean(stage.cluster)
        placement = Placement.of(stage.cluster, namespace)
        owners = {identity: placement.owner(document) for identity, document in documents.items()}
        anomalies = [*check_placement(_stored(stage, world), owners), *_check_keys(stage, world, documents)]
        if not anomalies:
            # All members, and every document with all its fields.
            check_collection(stage.cluster, namespace, documents)
    except AssertionError as anomaly:
        anomalies = [str(anomaly)]
    return [f"in the end, {world.name}: {anomaly}" for anomaly in anomalies]


def _stored(stage: Stage, world: World) -> dict[str, set[str]]:
    """The identities that each shard's primary stores."""
    stored = {}
    for shard in stage.cluster.running.shards:
        mongod = stage.cluster.client(f"{shard}.{stage.cluster.primary_index(shard)}.mongod")
        stored[shard] = set(mongod[stage.database][world.name].distinct("_id"))
    return stored


def _check_keys(stage: Stage, world: World, documents: Mapping[str, Document]) -> list[str]:
    """Through a router that has served clients."""
    collection = stage.cluster.router(0)[stage.database][world.name]
    found = {identity: collection.find_one(world.query(document)) for identity, document in documents.items()}
    return check_found_by_key(documents, found)


def end_transactions(stage: Stage) -> None:
    """Abort the transactions that clients have left open, and wait until all others are decided.

    Raises:
        AssertionError: a transaction remains prepared, or the coordinator of one remains.
    """
    stage.admin.admin.command("killAllSessions", [])
    wait_decided(stage.cluster)
