"""Migrations under way, as the shard daemons tell of them."""

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from pymongo.errors import PyMongoError

from deploy.chunk_map import bound_text
from deploy.mongod import connect
from deploy.topology import ProcessPlan

# Seconds a daemon has to answer; one that does not, because it is stopped, is left out.
ANSWER_SECONDS: Final = 2.0

_PIPELINE: Final[list[dict[str, Any]]] = [
    {"$currentOp": {"allUsers": True}},
    {"$match": {"migration": {"$exists": True}}},
]


def migrations_under_way(daemons: Iterable[ProcessPlan]) -> list[dict[str, Any]]:
    """What the given shard daemons know, in their order. Donor and recipient both tell of one migration.

    Each is the ``migration`` of an operation in the daemon's ``$currentOp``, with the daemon's name as ``process``.
    """
    daemons = list(daemons)
    with ThreadPoolExecutor(max_workers=len(daemons) or 1) as asking:
        return [migration for found in asking.map(_ask, daemons) for migration in found]


def _ask(daemon: ProcessPlan) -> list[dict[str, Any]]:
    with connect(daemon.address, ANSWER_SECONDS) as client:
        try:
            return [{"process": daemon.name, **each["migration"]} for each in client.admin.aggregate(_PIPELINE)]
        except PyMongoError:
            return []


def migration_text(migration: dict[str, Any]) -> str:
    """A migration in one line."""
    low, high = (bound_text(migration[bound]) for bound in ("min", "max"))
    counts = [
        f"{migration['documentsCloned']:,} of {migration['documents']:,} documents",
        f"{migration['bytesCloned'] / 1e6:,.1f} of {migration['bytes'] / 1e6:,.1f} MB",
        f"{migration['backlog']:,} changes to be transferred",
    ]
    route = f"{migration['from']} -> {migration['to']}"
    return (
        f"{migration['process']} moves {migration['ns']} [{low}, {high}) {route}: {migration['state']}, "
        + ", ".join(counts)
    )
