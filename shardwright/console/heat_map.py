"""The heat map of a collection: the load of ranges of the shard key over time.

The numbers are the shards' estimates in ``config.keyStatistics`` for the last hours, and for longer in
``config.keyStatisticsHistory``. They are aggregated on the config servers.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from shardwright.console.chunk_reads import key_bytes
from shardwright.console.collections import collection_entry
from shardwright.console.operations import recent_slow_shapes
from shardwright.console.reader import Document, Reader, maybe
from shardwright.sharding.key_statistics import HISTORY, MINUTES, Counts, KeyRange, added
from shardwright.wire.rawbson import decode_document, encode_document

MEASURES: Final = {"reads": "reads", "writes": "writes", "documents": "documents", "bytes": "bytes"}
"""Measures of the heat map, with their names for people."""

ROWS_MAX: Final = 40
_GROUPS_MAX: Final = 12_000
_SECONDS: Final = 15.0
_SHAPES_MAX: Final = 12


@dataclass(frozen=True, slots=True)
class Window:
    """A selectable period.

    Attributes:
        collection: the source of the numbers.
    """

    text: str
    minutes: int
    column_minutes: int
    collection: str

    @property
    def columns(self) -> int:
        """Number of columns."""
        return self.minutes // self.column_minutes


WINDOWS: Final[Mapping[str, Window]] = {
    "hour": Window("last hour", 60, 1, MINUTES),
    "hours": Window("last 6 hours", 360, 5, MINUTES),
    "day": Window("last day", 1440, 20, HISTORY),
    "weeks": Window("last 14 days", 20_160, 240, HISTORY),
}


async def heat_map(
    reader: Reader, namespace: str, measure: str = "reads", window: str = "hour", now: datetime | None = None
) -> dict[str, Any]:
    """Return the heat map of a collection.

    Args:
        measure: one of `MEASURES`.
        window: one of `WINDOWS`.
        now: the end of the period.
    """
    entry = await collection_entry(reader, namespace)
    chosen = WINDOWS[window]
    width = timedelta(minutes=chosen.column_minutes)
    end = _rounded_up(now or datetime.now(UTC), width)
    start = end - timedelta(minutes=chosen.minutes)
    refusals: list[str] = []

    async def read() -> list[Document]:
        return await reader.aggregate(
            "config", chosen.collection, _pipeline(namespace, start, end, width), limit=_GROUPS_MAX
        )

    rows = await maybe(reader.kept(("heat", namespace, window, start), _SECONDS, read), [], refusals)
    groups = _groups(namespace, rows)
    bands = added([[each for column, each in groups if column == number] for number in range(chosen.columns)], ROWS_MAX)
    cells = cells_of(bands, groups, measure, chosen.columns)
    shapes = await recent_slow_shapes(reader, refusals)
    return {
        "ns": namespace,
        "key": entry["key"],
        "measure": measure,
        "window": window,
        "from": start,
        "to": end,
        "columnSeconds": chosen.column_minutes * 60,
        "columns": [start + width * number for number in range(chosen.columns)],
        "bands": [
            {
                "min": decode_document(each.min),
                "max": decode_document(each.max),
                **{name: getattr(each.counts, name) for name in MEASURES},
            }
            for each in bands
        ],
        "cells": cells,
        "largest": max((cell for row in cells for cell in row), default=0),
        "shapes": [each for each in shapes if each["ns"] == namespace][:_SHAPES_MAX],
        "refusals": refusals,
    }


def _rounded_up(time: datetime, width: timedelta) -> datetime:
    seconds = width.total_seconds()
    return datetime.fromtimestamp(-(-time.timestamp() // seconds) * seconds, UTC)


def _pipeline(namespace: str, start: datetime, end: datetime, width: timedelta) -> list[Document]:
    """Return a pipeline for the sums by column and range, the busiest first."""
    column = {"$floor": {"$divide": [{"$subtract": ["$at", start]}, int(width.total_seconds() * 1000)]}}
    return [
        {"$match": {"at": {"$gte": start, "$lt": end}, "collections.ns": namespace}},
        {"$unwind": "$collections"},
        {"$match": {"collections.ns": namespace}},
        {"$unwind": "$collections.ranges"},
        {
            "$group": {
                "_id": {"column": column, "min": "$collections.ranges.min", "max": "$collections.ranges.max"},
                **{name: {"$sum": f"$collections.ranges.{name}"} for name in MEASURES},
            }
        },
        {"$sort": {"reads": -1, "writes": -1}},
        {"$limit": _GROUPS_MAX},
    ]


def _groups(namespace: str, rows: Sequence[Document]) -> list[tuple[int, KeyRange]]:
    """Return the columns and ranges with their numbers."""
    encoded: dict[str, tuple[bytes, bytes]] = {}

    def bound(document: Document) -> tuple[bytes, bytes]:
        key = repr(document)
        if key not in encoded:
            encoded[key] = encode_document(document), key_bytes(document)
        return encoded[key]

    found = []
    for row in rows:
        (low, low_key), (high, high_key) = bound(row["_id"]["min"]), bound(row["_id"]["max"])
        counts = Counts(*(int(row[name]) for name in MEASURES))
        found.append((int(row["_id"]["column"]), KeyRange(namespace, low, high, low_key, high_key, counts)))
    return found


def cells_of(
    bands: Sequence[KeyRange], groups: Sequence[tuple[int, KeyRange]], measure: str, columns: int
) -> list[list[int]]:
    """Distribute the numbers to bands and columns; a range over several bands counts for each in equal parts.

    Args:
        bands: in the order of the key.
        groups: a column and a range with its numbers, each.
        measure: one of `MEASURES`.
    """
    exact = [[0.0] * columns for _ in bands]
    lows = [each.min_key for each in bands]
    for column, each in groups:
        if not bands or not 0 <= column < columns:
            continue
        first = max(bisect_right(lows, each.min_key) - 1, 0)
        end = max(bisect_left(lows, each.max_key), first + 1)
        for row in range(first, end):
            exact[row][column] += getattr(each.counts, measure) / (end - first)
    return [[round(cell) for cell in row] for row in exact]
