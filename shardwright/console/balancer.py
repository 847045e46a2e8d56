"""The view of the balancer: its switch and window, its next round with reasons, and moves in progress."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final

from shardwright.console.metrics import Sampler
from shardwright.console.reader import Document, Reader, Value, partly, set_name
from shardwright.console.settings import Settings

_SECONDS: Final = 3.0
_ACTIONS_MAX: Final = 50
_SHARE_MIN: Final = 0.02

_STARTED: Final = "moveChunk.start"
_COMMITTED: Final = "moveChunk.commit"
_ENDED: Final = "moveChunk.from"
_SHOWN: Final = (_COMMITTED, "moveChunk.error", "split", "multi-split", "merge")
_CRITICAL_STEPS: Final = ("step 5 of 6", "step 6 of 6")
"""The donor's steps within the critical section: the commits on the recipient and on the config servers."""


async def balancer(reader: Reader, sampler: Sampler, settings: Settings) -> dict[str, Any]:
    """Return state, window, the decisions of the next round, moves and reshardings in progress, and history."""
    return await reader.kept("balancer", _SECONDS, lambda: _read(reader, sampler, settings))


async def _read(reader: Reader, sampler: Sampler, settings: Settings) -> dict[str, Any]:
    refusals: list[str] = []
    no_document: Document = {}
    no_documents: list[Document] = []
    no_plan: Document | None = None

    def part(name: str, read: Callable[[], Awaitable[Value]], fallback: Value) -> Awaitable[Value]:
        return partly(reader, ("balancer", name), 0.0, read, fallback, refusals)

    def newest(collection: str, what: object, limit: int) -> Awaitable[list[Document]]:
        sort = [("time", -1)]
        reading = partial(reader.find, "config", collection, {"what": what}, sort=sort, limit=limit)
        return part(collection, reading, no_documents)

    explain = partial(reader.command, {"balancerExplain": 1})
    (status, plan), (shards, config, migrations), (reshardings, rounds, events) = await asyncio.gather(
        asyncio.gather(
            part("status", partial(reader.command, {"balancerStatus": 1}), no_document),
            part("plan", lambda: reader.rested("plan", explain), no_plan),
        ),
        asyncio.gather(
            part("shards", partial(reader.find, "config", "shards", {}), no_documents),
            part("settings", partial(reader.find, "config", "settings", {}), no_documents),
            part("migrations", partial(reader.find, "config", "migrations", {}, limit=_ACTIONS_MAX), no_documents),
        ),
        asyncio.gather(
            part("reshardings", partial(_reshardings, reader), no_documents),
            newest("actionlog", "balancer.round", _ACTIONS_MAX),
            # A move has an event of each kind.
            newest("changelog", {"$in": [*_SHOWN, _STARTED, _ENDED]}, _ACTIONS_MAX * 3),
        ),
    )
    names = {set_name(each["host"]): each["_id"] for each in shards}
    stored = {each["_id"]: each for each in config}
    return {
        "shards": sorted(names.values()),
        "mode": status.get("mode", "unknown"),
        "inRound": status.get("inBalancerRound"),
        "rounds": status.get("numBalancerRounds"),
        "window": stored.get("balancer", {}).get("activeWindow"),
        "chunkSizeMB": stored.get("chunksize", {}).get("value", 128),
        "autoSplit": stored.get("autosplit", {}).get("enabled", True),
        "plan": None if plan is None else _plan(plan),
        "migrations": [_migration(each) for each in migrations],
        "transfers": transfers(sampler, settings, events, names),
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
                "pauseMillis": pause,
                "error": each["details"].get("errmsg"),
            }
            for each, pause in with_pauses(events)[:_ACTIONS_MAX]
        ],
        "refusals": refusals,
    }


def with_pauses(events: Sequence[Document]) -> list[tuple[Document, int | None]]:
    """Return the events to show, the newest first. For a move, add the milliseconds for which writes paused.

    The donor logs the durations of a move's steps in an event after the commit.
    """
    pauses: dict[tuple[str, str], int] = {}
    found: list[tuple[Document, int | None]] = []
    for each in events:
        move = (each.get("ns", ""), str(each["details"].get("min")))
        if each["what"] == _ENDED and _CRITICAL_STEPS[0] in each["details"]:
            pauses[move] = sum(each["details"].get(step, 0) for step in _CRITICAL_STEPS)
        elif each["what"] in _SHOWN:
            found.append((each, pauses.pop(move, None) if each["what"] == _COMMITTED else None))
    return found


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


def transfers(
    sampler: Sampler, settings: Settings, events: Sequence[Document], names: Mapping[str, str]
) -> list[dict[str, Any]]:
    """Return the moves that donors report in their metrics, with the time left at the rate so far.

    Args:
        events: the events of the change log, the newest first.
        names: the names of the shards, by replica set.
    """
    found = []
    started = {each["details"].get("from"): each["time"] for each in reversed(events) if each["what"] == _STARTED}
    for target in settings.targets:
        values = sampler.values(target.process)
        if target.role == "shardd" and values.get("donor_migration_active"):
            estimated = values.get("donor_migration_documents_estimated", 0)
            cloned = values.get("donor_migration_documents_cloned", 0)
            share = min(1.0, cloned / estimated) if estimated else None
            donor = names.get(target.replica_set, target.replica_set)
            found.append(
                {
                    "donor": donor,
                    "step": int(values.get("donor_migration_step", 0)),
                    "documents": int(cloned),
                    "documentsEstimated": int(estimated),
                    "bytes": int(values.get("donor_migration_bytes_cloned", 0)),
                    "share": share,
                    "secondsLeft": seconds_left(started.get(donor), share, datetime.now(UTC)),
                }
            )
    return found


def seconds_left(started: datetime | None, share: float | None, now: datetime) -> float | None:
    """Return the seconds left of a move at the rate so far; None if too little of it is done."""
    if started is None or share is None or share < _SHARE_MIN:
        return None
    return (now - started).total_seconds() * (1 - share) / share


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
