"""Reads of ``config.chunks``.

Chunks are read as at most 600 bands, aggregated on the config servers. Counts and bands are read again only if the
newest version of the collection's chunks has changed, which is one index look-up. Reading them takes at most one
percent of the time. No other request scans ``config.chunks``.
"""

from collections.abc import Sequence
from typing import Any, Final

from shardwright.console.reader import Document, Reader
from shardwright.sharding.key_order import encode_key
from shardwright.wire.rawbson import encode_document

BANDS_MAX: Final = 600
"""Maximum number of bands of a map, a pixel or two each."""

LISTED_MAX: Final = 100
_VERSION_SECONDS: Final = 3.0


async def newest_version(reader: Reader, uuid: object) -> object:
    """Return the highest version among the chunks of a collection; None without any."""

    async def read() -> object:
        found = await reader.find(
            "config", "chunks", {"uuid": uuid}, sort=[("lastmod", -1)], limit=1, fields={"lastmod": 1}
        )
        return found[0]["lastmod"] if found else None

    return await reader.kept(("version", str(uuid)), _VERSION_SECONDS, read)


async def chunk_counts(reader: Reader, uuid: object) -> dict[str, dict[str, int]]:
    """Count chunks and jumbo chunks by shard: ``{shard: {chunks, jumbo}}``."""

    async def read() -> dict[str, dict[str, int]]:
        rows = await reader.aggregate(
            "config",
            "chunks",
            [
                {"$match": {"uuid": uuid}},
                {
                    "$group": {
                        "_id": "$shard",
                        "chunks": {"$sum": 1},
                        "jumbo": {"$sum": {"$cond": [{"$eq": ["$jumbo", True]}, 1, 0]}},
                    }
                },
            ],
        )
        return {row["_id"]: {"chunks": row["chunks"], "jumbo": row["jumbo"]} for row in sorted(rows, key=_id)}

    return await reader.until_changed(("counts", str(uuid)), await newest_version(reader, uuid), read)


def _id(row: Document) -> str:
    return str(row["_id"])


async def bands(reader: Reader, uuid: object, shards: Sequence[str]) -> list[Document]:
    """Return neighbouring chunks in the order of their shard key, in at most `BANDS_MAX` groups.

    Each has ``min``, ``max``, ``chunks``, ``jumbo``, ``shards`` (chunks by shard) and ``movedAt`` (time of the last
    move, in seconds).
    """

    async def read() -> list[Document]:
        output: dict[str, Any] = {
            "chunks": {"$sum": 1},
            "max": {"$last": "$max"},
            "jumbo": {"$sum": {"$cond": [{"$eq": ["$jumbo", True]}, 1, 0]}},
            "movedAt": {"$max": {"$first": "$history.validAfter"}},
        }
        for number, shard in enumerate(shards):
            output[f"shard{number}"] = {"$sum": {"$cond": [{"$eq": ["$shard", shard]}, 1, 0]}}
        rows = await reader.aggregate(
            "config",
            "chunks",
            [
                {"$match": {"uuid": uuid}},
                {"$sort": {"min": 1}},
                {"$project": {"min": 1, "max": 1, "shard": 1, "jumbo": 1, "history.validAfter": 1}},
                {"$bucketAuto": {"groupBy": "$min", "buckets": BANDS_MAX, "output": output}},
            ],
        )
        return [
            {
                "min": row["_id"]["min"],
                "max": row["max"],
                "chunks": row["chunks"],
                "jumbo": row["jumbo"],
                "shards": {shard: row[f"shard{n}"] for n, shard in enumerate(shards) if row[f"shard{n}"]},
                "movedAt": None if row["movedAt"] is None else row["movedAt"].time,
            }
            for row in rows
        ]

    return await reader.until_changed(("bands", str(uuid), *shards), await newest_version(reader, uuid), read)


async def chunks_between(
    reader: Reader, uuid: object, low: Document | None, high: Document | None
) -> tuple[list[Document], bool]:
    """Return the first chunks that begin from ``low`` up to ``high``, and whether there are more.

    A bound that is None is the end of all keys.
    """
    query: dict[str, Any] = {"uuid": uuid}
    bounds = {name: bound for name, bound in (("$gte", low), ("$lt", high)) if bound is not None}
    if bounds:
        query["min"] = bounds
    fields = {"min": 1, "max": 1, "shard": 1, "jumbo": 1, "lastmod": 1, "history": {"$slice": 1}}
    found = await reader.find("config", "chunks", query, sort=[("min", 1)], limit=LISTED_MAX + 1, fields=fields)
    return found[:LISTED_MAX], len(found) > LISTED_MAX


async def chunk_of(reader: Reader, uuid: object, key: Document) -> Document | None:
    """Return the chunk that contains a shard key."""
    found = await reader.find("config", "chunks", {"uuid": uuid, "min": {"$lte": key}}, sort=[("min", -1)], limit=1)
    return found[0] if found else None


def key_bytes(bound: Document) -> bytes:
    """Encode a bound so that bytes compare in the order of shard keys."""
    return encode_key(encode_document(bound))
