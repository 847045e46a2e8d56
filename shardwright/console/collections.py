"""The views of sharded collections: the list, one collection, its chunk map and its history."""

import asyncio
from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from itertools import takewhile
from typing import Any, Final

from bson import Timestamp

from shardwright.console.chunk_reads import bands, chunk_counts, chunks_between, key_bytes
from shardwright.console.reader import PART_SECONDS_MAX, Document, Reader, Refused, maybe, partly
from shardwright.wire.logger import get_logger

_log = get_logger("console.collections")

_SECONDS: Final = 5.0
_STATS_SECONDS: Final = 20.0
_SIZES_SECONDS: Final = 60.0
_MEASURED_AT_A_TIME: Final = 4
LISTED_MAX: Final = 300
CHANGES_MAX: Final = 300

_MOVED: Final = "moveChunk.commit"
_SHARDED: Final = "shardCollection.start"


class UnknownCollection(Refused):
    """There is no sharded collection of that name.

    All views of one collection raise it.
    """

    def __init__(self, namespace: str) -> None:
        super().__init__(f"{namespace} is not a sharded collection")


async def shard_names(reader: Reader) -> list[str]:
    """Return the shards in the order that gives them their colours."""

    async def read() -> list[str]:
        return [each["_id"] for each in await reader.find("config", "shards", {}, sort=[("_id", 1)])]

    return await reader.kept("shards", _SECONDS, read)


async def collections(reader: Reader) -> dict[str, Any]:
    """Return the sharded collections with keys and chunks by shard, and the databases with their primary shards."""
    shards, found, databases, tags = await asyncio.gather(
        shard_names(reader),
        reader.find("config", "collections", {"unsplittable": {"$ne": True}}, sort=[("_id", 1)], limit=LISTED_MAX),
        maybe(reader.find("config", "databases", {}, sort=[("_id", 1)]), [], []),
        maybe(reader.aggregate("config", "tags", [{"$group": {"_id": "$ns", "zones": {"$sum": 1}}}]), [], []),
    )
    zones = {each["_id"]: each["zones"] for each in tags}
    rows = []
    for each in found:
        counts = await chunk_counts(reader, each["uuid"])
        rows.append(
            {
                "ns": each["_id"],
                "key": each["key"],
                "unique": bool(each.get("unique")),
                "balanced": not each.get("noBalance", False),
                "chunks": sum(count["chunks"] for count in counts.values()),
                "jumbo": sum(count["jumbo"] for count in counts.values()),
                "chunksByShard": {name: count["chunks"] for name, count in counts.items()},
                "zoneRanges": zones.get(each["_id"], 0),
                "changedAt": each.get("lastmod"),
            }
        )
    return {
        "shards": shards,
        "collections": rows,
        "isComplete": len(found) < LISTED_MAX,
        "databases": [{"name": each["_id"], "primary": each.get("primary")} for each in databases],
    }


async def collection_entry(reader: Reader, namespace: str) -> Document:
    """Return the catalog's document of a sharded collection."""

    async def read() -> Document:
        for found in await reader.find("config", "collections", {"_id": namespace}, limit=1):
            if not found.get("unsplittable"):
                return found
        raise UnknownCollection(namespace)

    return await reader.kept(("entry", namespace), _SECONDS, read)


async def collection(reader: Reader, namespace: str) -> dict[str, Any]:
    """Return one sharded collection: key, zones, indexes, sizes by shard, skew."""
    entry = await collection_entry(reader, namespace)
    refusals: list[str] = []
    none: Document = {}
    no_stats: dict[str, dict[str, int]] = {}
    no_indexes: list[Document] = []
    (shards, counts, zones), status, stats, indexes = await asyncio.gather(
        asyncio.gather(
            shard_names(reader),
            chunk_counts(reader, entry["uuid"]),
            maybe(zones_of(reader, namespace), [], refusals),
        ),
        partly(reader, ("compliance", namespace), _SECONDS, lambda: _compliance(reader, namespace), none, refusals),
        partly(
            reader, ("stats", namespace), _STATS_SECONDS, lambda: _statistics(reader, namespace), no_stats, refusals
        ),
        partly(
            reader, ("indexes", namespace), _STATS_SECONDS, lambda: _indexes(reader, namespace), no_indexes, refusals
        ),
    )
    by_shard: list[Document] = [
        {
            "shard": shard,
            "chunks": counts.get(shard, {}).get("chunks", 0),
            "jumbo": counts.get(shard, {}).get("jumbo", 0),
            **{name: stats.get(shard, {}).get(name, 0) for name in _STATISTICS},
        }
        for shard in shards
    ]
    return {
        "ns": namespace,
        "uuid": str(entry["uuid"].as_uuid() if hasattr(entry["uuid"], "as_uuid") else entry["uuid"]),
        "key": entry["key"],
        "unique": bool(entry.get("unique")),
        "balanced": not entry.get("noBalance", False),
        "isResharding": "reshardingFields" in entry,
        "isHashed": "hashed" in entry["key"].values(),
        "shards": shards,
        "byShard": by_shard,
        "chunks": sum(each["chunks"] for each in by_shard),
        "documents": sum(each["documents"] for each in by_shard),
        "bytes": sum(each["bytes"] for each in by_shard),
        "skew": skew([each["bytes"] for each in by_shard]),
        "zones": zones,
        "indexes": indexes,
        "balancer": None
        if not status
        else {
            "isCompliant": status["balancerCompliant"],
            "violation": status.get("firstComplianceViolation"),
            "chunkSizeMB": status["chunkSize"],
        },
        "refusals": refusals,
    }


async def _compliance(reader: Reader, namespace: str) -> Document:
    return await reader.rested(
        ("compliance of", namespace), lambda: reader.command({"balancerCollectionStatus": namespace})
    )


_STATISTICS: Final = ("documents", "bytes", "storageBytes", "indexBytes", "orphans")


def skew(amounts: Sequence[float]) -> float | None:
    """Return the excess of the fullest shard over the average: 0 is even, 1 is twice as much; None without data."""
    total = sum(amounts)
    return max(amounts) * len(amounts) / total - 1 if total else None


async def zones_of(reader: Reader, namespace: str) -> list[Document]:
    """Return the zones' ranges of a collection, in the order of its key."""
    tags = await reader.find("config", "tags", {"ns": namespace}, sort=[("min", 1)], limit=LISTED_MAX)
    return [{"zone": each["tag"], "min": each["min"], "max": each["max"]} for each in tags]


async def _statistics(reader: Reader, namespace: str) -> dict[str, dict[str, int]]:
    db, _, name = namespace.partition(".")
    rows = await reader.aggregate(
        db,
        name,
        [
            {"$collStats": {"storageStats": {}}},
            {
                "$project": {
                    "shard": 1,
                    "documents": "$storageStats.count",
                    "bytes": "$storageStats.size",
                    "storageBytes": "$storageStats.storageSize",
                    "indexBytes": "$storageStats.totalIndexSize",
                    "orphans": {"$ifNull": ["$storageStats.numOrphanDocs", 0]},
                }
            },
        ],
    )
    return {row["shard"]: {name: int(row.get(name) or 0) for name in _STATISTICS} for row in rows if "shard" in row}


async def _indexes(reader: Reader, namespace: str) -> list[Document]:
    """Return each index with the shards that have it and its use since their start."""
    db, _, name = namespace.partition(".")
    rows = await reader.aggregate(db, name, [{"$indexStats": {}}])
    found: dict[str, Document] = {}
    for row in rows:
        spec = row.get("spec", {})
        each = found.setdefault(
            row["name"],
            {
                "name": row["name"],
                "key": row["key"],
                "uses": 0,
                "shards": [],
                "unique": bool(spec.get("unique")),
                "sparse": bool(spec.get("sparse")),
                "expireAfterSeconds": spec.get("expireAfterSeconds"),
            },
        )
        each["uses"] += int(row["accesses"]["ops"])
        each["shards"].append(row.get("shard"))
    return sorted(found.values(), key=lambda each: str(each["name"]))


async def chunk_map(reader: Reader, namespace: str, back: int = 0, *, measured: bool = False) -> dict[str, Any]:
    """Return the bands of a collection with their zones, now or before its last moves.

    Args:
        back: number of moves to undo.
        measured: whether shards estimate the size of each band, which takes them some work; of a hundred at most.
    """
    entry = await collection_entry(reader, namespace)
    shards = await shard_names(reader)
    found = await bands(reader, entry["uuid"], shards)
    zones = await maybe(zones_of(reader, namespace), [], [])
    may_measure = measured and len(found) <= LISTED_MAX
    sizes = await chunk_sizes(reader, namespace, entry["key"], found) if may_measure else {}
    located = [({**band}, key_bytes(band["min"]), key_bytes(band["max"])) for band in found]
    ranges = [(key_bytes(zone["min"]), key_bytes(zone["max"]), zone["zone"]) for zone in zones]
    for band, low, high in located:
        names = {name for start, end, name in ranges if start < high and low < end}
        band["zone"] = "several zones" if len(names) > 1 else next(iter(names), None)
        band["bytes"] = sizes.get(low)
    is_exact = all(band["chunks"] == 1 for band in found)
    moves = await maybe(moves_of(reader, namespace), [], [])
    undone = moves[: max(0, back)]
    _undo(undone, located)
    return {
        "ns": namespace,
        "key": entry["key"],
        "isHashed": list(entry["key"].values())[:1] == ["hashed"],
        "shards": shards,
        "chunks": sum(band["chunks"] for band in found),
        "bands": [band for band, _, _ in located],
        "isExact": is_exact,
        "zones": zones,
        "moves": len(moves),
        "back": len(undone),
        "at": undone[-1]["time"] if undone else None,
    }


def _undo(moves: Sequence[Document], located: list[tuple[Document, bytes, bytes]]) -> None:
    """Give ranges back to the shards that had them, the last move first."""
    for move in moves:
        details = move["details"]
        low, high = key_bytes(details["min"]), key_bytes(details["max"])
        for band, start, end in located:
            if low <= start and end <= high and details["to"] in band["shards"]:
                # The reader keeps the band's own counts, so they are not changed.
                others = {name: count for name, count in band["shards"].items() if name != details["to"]}
                given_back = others.get(details["from"], 0) + band["shards"][details["to"]]
                band["shards"] = {**others, details["from"]: given_back}


async def moves_of(reader: Reader, namespace: str) -> list[Document]:
    """Return the committed moves of a collection that are still in the change log, the last one first."""

    entry = await collection_entry(reader, namespace)

    async def read() -> list[Document]:
        query = {"ns": namespace, "what": {"$in": [_MOVED, _SHARDED]}, "time": {"$gte": _began(entry)}}
        return await reader.find("config", "changelog", query, sort=[("time", -1)], limit=CHANGES_MAX)

    # A timestamp has whole seconds: within the same second, the event of the sharding separates the moves.
    found = await reader.kept(("moves", namespace, entry["timestamp"]), _SECONDS, read)
    return list(takewhile(lambda change: change["what"] == _MOVED, found))


def _began(entry: Document) -> datetime:
    """Return the creation time of a collection's present chunks, so that an earlier collection's moves do not count."""
    return datetime.fromtimestamp(entry["timestamp"].time, UTC)


async def changes(reader: Reader, namespace: str | None) -> dict[str, Any]:
    """Return the last events of the change log, the newest first; of one collection, or of all."""
    query = {} if namespace is None else {"ns": namespace}
    found = await reader.find("config", "changelog", query, sort=[("time", -1)], limit=CHANGES_MAX)
    return {
        "changes": [
            {
                "time": each["time"],
                "what": each["what"],
                "ns": each.get("ns", ""),
                "shard": each.get("shard", ""),
                "details": _short(each.get("details", {})),
            }
            for each in found
        ]
    }


def _short(details: Mapping[str, Any]) -> dict[str, Any]:
    """Return the details without the parts that only machines read."""
    return {
        name: value
        for name, value in details.items()
        if name not in ("uuid", "version", "markedUntil", "markedAfter", "request") and not name.startswith("step ")
    }


async def chunk_list(
    reader: Reader,
    namespace: str,
    low: Document | None,
    high: Document | None,
    *,
    band: int | None = None,
    measured: bool = False,
) -> dict[str, Any]:
    """Return the chunks that begin within a range, at most a hundred.

    Args:
        low: the first key; None for the smallest.
        high: the key before which they begin; None for the largest.
        band: number of a band of the map, in place of the range.
        measured: whether shards estimate the size of each chunk, which takes them some work.
    """
    entry = await collection_entry(reader, namespace)
    shards = await shard_names(reader)
    if band is not None:
        found_bands = await bands(reader, entry["uuid"], shards)
        if 0 <= band < len(found_bands):
            low = found_bands[band]["min"]
            high = found_bands[band + 1]["min"] if band + 1 < len(found_bands) else None
    found, has_more = await chunks_between(reader, entry["uuid"], low, high)
    sizes = await chunk_sizes(reader, namespace, entry["key"], found) if measured else {}
    return {
        "ns": namespace,
        "key": entry["key"],
        "shards": shards,
        "from": low,
        "to": high,
        "chunks": [
            {
                "min": each["min"],
                "max": each["max"],
                "shard": each["shard"],
                "jumbo": bool(each.get("jumbo")),
                "version": _version_text(each["lastmod"]),
                "since": _since(each),
                "bytes": sizes.get(key_bytes(each["min"])),
            }
            for each in found
        ],
        "hasMore": has_more,
    }


def _version_text(version: Timestamp) -> str:
    return f"{version.time}|{version.inc}"


def _since(chunk: Document) -> datetime | None:
    history = chunk.get("history")
    return datetime.fromtimestamp(history[0]["validAfter"].time, UTC) if history else None


async def chunk_sizes(reader: Reader, namespace: str, key: Document, chunks: Sequence[Document]) -> dict[bytes, int]:
    """Estimate the bytes of chunks, by their lower bounds; chunks that a shard cannot estimate are omitted."""
    db = namespace.partition(".")[0]
    limits: defaultdict[object, asyncio.Semaphore] = defaultdict(lambda: asyncio.Semaphore(_MEASURED_AT_A_TIME))

    async def one(chunk: Document) -> tuple[bytes, int] | None:
        command = {
            "dataSize": namespace,
            "keyPattern": key,
            "min": chunk["min"],
            "max": chunk["max"],
            "estimate": True,
        }
        # A shard that hangs must not delay commands to the other shards.
        async with limits[chunk.get("shard") or tuple(chunk.get("shards", ()))]:
            try:
                return key_bytes(chunk["min"]), int((await reader.command(command, db))["size"])
            except Refused:
                return None

    async def all_of_them() -> dict[bytes, int]:
        measuring = [asyncio.create_task(one(chunk)) for chunk in chunks]
        try:
            async with asyncio.timeout(PART_SECONDS_MAX):
                await asyncio.gather(*measuring)
        except TimeoutError:
            _log.info("Left out chunks that were not measured in time", namespace=namespace)
        finally:
            for each in measuring:
                each.cancel()
        return dict(found for each in measuring if each.done() and not each.cancelled() and (found := each.result()))

    about = (chunks[0]["min"], chunks[-1]["max"], len(chunks)) if chunks else ()
    return await reader.kept(("chunk sizes", namespace, str(about)), _SIZES_SECONDS, all_of_them)
