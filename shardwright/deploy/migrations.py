"""Active migrations, as reported by the shard daemons."""

from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final

from pymongo.errors import PyMongoError

from shardwright.deploy.access import NO_LOG_IN
from shardwright.deploy.chunk_map import bound_text
from shardwright.deploy.mongod import connect
from shardwright.deploy.topology import ProcessPlan

# Seconds within which a daemon must answer. A paused daemon does not, and is omitted.
ANSWER_SECONDS: Final = 2.0

_PIPELINE: Final[list[dict[str, Any]]] = [
    {"$currentOp": {"allUsers": True}},
    {"$match": {"migration": {"$exists": True}}},
]


def migrations_under_way(daemons: Iterable[ProcessPlan], log_in: Mapping[str, Any] = NO_LOG_IN) -> list[dict[str, Any]]:
    """Return the active migrations of the given shard daemons, in the order of the daemons.

    Donor and recipient each report ``process``, ``ns``, ``from``, ``to``, ``min``, ``max``, ``step``, ``seconds``,
    ``documents`` (the estimated number in the range), and their own progress: ``state``, ``documentsCloned``,
    ``bytesCloned``, on the donor also ``documentsQueued`` (changed and not transferred yet) and more.
    """
    daemons = list(daemons)
    with ThreadPoolExecutor(max_workers=len(daemons) or 1) as asking:
        return [migration for found in asking.map(partial(_ask, log_in), daemons) for migration in found]


def _ask(log_in: Mapping[str, Any], daemon: ProcessPlan) -> list[dict[str, Any]]:
    with connect(daemon.address, ANSWER_SECONDS, log_in) as client:
        try:
            return [_described(daemon.name, operation) for operation in client.admin.aggregate(_PIPELINE)]
        except PyMongoError:
            return []


def _described(process: str, operation: dict[str, Any]) -> dict[str, Any]:
    command = operation["command"]
    return {
        "process": process,
        "ns": operation["ns"],
        "from": command["fromShard"],
        "to": command["toShard"],
        "min": command["min"],
        "max": command["max"],
        "step": operation["msg"],
        "seconds": operation["secs_running"],
        "documents": operation["progress"]["total"],
        **operation["migration"],
    }


def migration_text(migration: dict[str, Any]) -> str:
    """Format a migration in one line."""
    low, high = (bound_text(migration[bound]) for bound in ("min", "max"))
    parts = [
        f"{migration['step']} {migration['state']}".rstrip(),
        f"{migration['documentsCloned']:,} of {migration['documents']:,} documents",
        f"{migration['bytesCloned'] / 1e6:,.1f} MB",
        f"{migration['seconds']} s",
    ]
    if "documentsQueued" in migration:
        parts.insert(3, f"{migration['documentsQueued']:,} changes to transfer")
    route = f"{migration['from']} -> {migration['to']}"
    return f"{migration['process']}: {migration['ns']} [{low}, {high}) {route}: {', '.join(parts)}"
