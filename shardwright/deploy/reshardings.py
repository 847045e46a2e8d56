"""The present resharding operation, as reported by its recipients."""

from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final

from bson.json_util import dumps
from pymongo.errors import PyMongoError

from shardwright.deploy.access import NO_LOG_IN
from shardwright.deploy.migrations import ANSWER_SECONDS
from shardwright.deploy.mongod import connect
from shardwright.deploy.topology import ProcessPlan

_PIPELINE: Final[list[dict[str, Any]]] = [
    {"$currentOp": {"allUsers": True}},
    {"$match": {"originatingCommand.reshardCollection": {"$exists": True}, "recipientState": {"$exists": True}}},
]


def reshardings_under_way(
    daemons: Iterable[ProcessPlan], log_in: Mapping[str, Any] = NO_LOG_IN
) -> list[dict[str, Any]]:
    """Return each recipient's progress, in the order of the daemons.

    The fields are ``process``, ``ns``, ``key``, ``state``, ``seconds``, ``remainingSeconds`` (-1 if unknown),
    ``documents`` and ``bytes`` (estimated totals to receive), ``documentsCopied``, ``bytesCopied``, ``changesFetched``
    and ``changesApplied``.
    """
    daemons = list(daemons)
    with ThreadPoolExecutor(max_workers=len(daemons) or 1) as asking:
        return [resharding for found in asking.map(partial(_ask, log_in), daemons) for resharding in found]


def _ask(log_in: Mapping[str, Any], daemon: ProcessPlan) -> list[dict[str, Any]]:
    with connect(daemon.address, ANSWER_SECONDS, log_in) as client:
        try:
            return [_described(daemon.name, operation) for operation in client.admin.aggregate(_PIPELINE)]
        except PyMongoError:
            return []


def _described(process: str, operation: dict[str, Any]) -> dict[str, Any]:
    return {
        "process": process,
        "ns": operation["ns"],
        "key": operation["originatingCommand"]["key"],
        "state": operation["recipientState"],
        "seconds": operation["totalOperationTimeElapsedSecs"],
        "remainingSeconds": operation["remainingOperationTimeEstimatedSecs"],
        "documents": operation["approxDocumentsToCopy"],
        "documentsCopied": operation["documentsCopied"],
        "bytes": operation["approxBytesToCopy"],
        "bytesCopied": operation["bytesCopied"],
        "changesFetched": operation["oplogEntriesFetched"],
        "changesApplied": operation["oplogEntriesApplied"],
    }


def resharding_text(resharding: dict[str, Any]) -> str:
    """Format one recipient's progress in one line."""
    parts = [
        resharding["state"],
        f"{resharding['documentsCopied']:,} of {resharding['documents']:,} documents",
        f"{resharding['bytesCopied'] / 1e6:,.1f} MB",
        f"{resharding['changesApplied']:,} of {resharding['changesFetched']:,} changes",
        f"{resharding['seconds']} s",
    ]
    if resharding["remainingSeconds"] >= 0:
        parts.append(f"about {resharding['remainingSeconds']} s left")
    return f"{resharding['process']}: resharding {resharding['ns']} by {dumps(resharding['key'])}: {', '.join(parts)}"
