"""The view of the balancer: its switch and window, its next round with reasons, and moves in progress."""

import asyncio
from typing import Any, Final

from shardwright.console.reader import Document, Reader, maybe
from shardwright.console.sampler import Sampler
from shardwright.console.settings import Settings

_SECONDS: Final = 3.0
_ACTIONS_MAX: Final = 50


async def balancer(reader: Reader, sampler: Sampler, settings: Settings) -> dict[str, Any]:
    """Return state, window, the decisions of the next round, moves and reshardings in progress, and history."""
    return await reader.kept("balancer", _SECONDS, lambda: _read(reader, sampler, settings))


async def _read(reader: Reader, sampler: Sampler, settings: Settings) -> dict[str, Any]:
    refusals: list[str] = []
    status, config, plan, migrations = await asyncio.gather(
        maybe(reader.command({"balancerStatus": 1}), {}, refusals),
        maybe(reader.find("config", "settings", {}), [], refusals),
        maybe(reader.rested("plan", lambda: reader.command({"balancerExplain": 1})), None, refusals),
        maybe(reader.find("config", "migrations", {}, limit=_ACTIONS_MAX), [], refusals),
    )
    reshardings, rounds, moves = await asyncio.gather(
        maybe(_reshardings(reader), [], refusals),
        maybe(
            reader.find("config", "actionlog", {"what": "balancer.round"}, sort=[("time", -1)], limit=_ACTIONS_MAX),
            [],
            refusals,
        ),
        maybe(
            reader.find(
                "config",
                "changelog",
                {"what": {"$in": ["moveChunk.commit", "moveChunk.error", "split", "multi-split", "merge"]}},
                sort=[("time", -1)],
                limit=_ACTIONS_MAX,
            ),
            [],
            refusals,
        ),
    )
    stored = {each["_id"]: each for each in config}
    return {
        "mode": status.get("mode", "unknown"),
        "inRound": status.get("inBalancerRound"),
        "rounds": status.get("numBalancerRounds"),
        "window": stored.get("balancer", {}).get("activeWindow"),
        "chunkSizeMB": stored.get("chunksize", {}).get("value", 128),
        "autoSplit": stored.get("autosplit", {}).get("enabled", True),
        "plan": None if plan is None else _plan(plan),
        "migrations": [_migration(each) for each in migrations],
        "transfers": _transfers(sampler, settings),
        "reshardings": reshardings,
        "history": [
            {
                "time": each["time"],
                "errorOccurred": each["details"].get("errorOccurred", False),
                "candidateChunks": each["details"].get("candidateChunks"),
                "chunksMoved": each["details"].get("chunksMoved"),
                "millis": each["details"].get("executionTimeMillis"),
                "error": each["details"].get("errmsg"),
            }
            for each in rounds
        ],
        "moves": [
            {
                "time": each["time"],
                "what": each["what"],
                "ns": each.get("ns", ""),
                "from": each["details"].get("from"),
                "to": each["details"].get("to"),
                "min": _range_of(each["details"]).get("min"),
                "max": _range_of(each["details"]).get("max"),
                "documents": each["details"].get("counts", {}).get("cloned"),
                "bytes": each["details"].get("counts", {}).get("clonedBytes"),
                "error": each["details"].get("errmsg"),
            }
            for each in moves
        ],
        "refusals": refusals,
    }


def _range_of(details: Document) -> Document:
    """Return the range of an event; for a split, the chunk before it."""
    return details if "min" in details else details.get("before") or details.get("merged") or {}


def _plan(reply: Document) -> dict[str, Any]:
    return {
        "policy": reply.get("balancerPolicy"),
        "decisions": reply.get("decisions", []),
        "skipped": reply.get("skipped", []),
        "heldBack": reply.get("heldBack", []),
        "collections": reply.get("collections", []),
    }


def _migration(document: Document) -> dict[str, Any]:
    return {
        "ns": document.get("ns"),
        "from": document.get("fromShard"),
        "to": document.get("toShard"),
        "min": document.get("min"),
        "max": document.get("max"),
    }


def _transfers(sampler: Sampler, settings: Settings) -> list[dict[str, Any]]:
    """Return the moves that donors report in their metrics."""
    found = []
    for target in settings.targets:
        values = sampler.values(target.process)
        if target.role == "shardd" and values.get("donor_migration_active"):
            estimated = values.get("donor_migration_documents_estimated", 0)
            cloned = values.get("donor_migration_documents_cloned", 0)
            found.append(
                {
                    "donor": target.replica_set,
                    "step": int(values.get("donor_migration_step", 0)),
                    "documents": int(cloned),
                    "documentsEstimated": int(estimated),
                    "bytes": int(values.get("donor_migration_bytes_cloned", 0)),
                    "share": min(1.0, cloned / estimated) if estimated else None,
                }
            )
    return found


async def _reshardings(reader: Reader) -> list[Document]:
    found = await reader.aggregate(
        "admin",
        None,
        [
            {"$currentOp": {"allUsers": True}},
            {
                "$match": {
                    "originatingCommand.reshardCollection": {"$exists": True},
                    "recipientState": {"$exists": True},
                }
            },
        ],
    )
    return [
        {
            "ns": each["ns"],
            "shard": each.get("shard", ""),
            "key": each["originatingCommand"]["key"],
            "state": each["recipientState"],
            "seconds": each.get("totalOperationTimeElapsedSecs"),
            "remainingSeconds": each.get("remainingOperationTimeEstimatedSecs"),
            "bytes": each.get("approxBytesToCopy"),
            "bytesCopied": each.get("bytesCopied"),
            "changesApplied": each.get("oplogEntriesApplied"),
            "changesFetched": each.get("oplogEntriesFetched"),
        }
        for each in found
    ]
