"""A map of a collection's chunks in the terminal: one row per shard, one block per chunk."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bson import MaxKey, MinKey
from pymongo import MongoClient

# Columns for the blocks; a collection with more chunks than half of this shows several chunks as one block.
WIDTH = 64

FULL, EMPTY = "█", "·"
BOUND_CHARACTERS_MAX = 24


@dataclass(frozen=True)
class Chunk:
    """The fields of a chunk that the map needs."""

    minimum: dict[str, Any]
    maximum: dict[str, Any]
    shard: str


@dataclass(frozen=True)
class ChunkMap:
    """The placement of one sharded collection; chunks are in shard key order."""

    namespace: str
    key: dict[str, Any]
    chunks: tuple[Chunk, ...]

    @classmethod
    def fetch(cls, client: MongoClient[dict[str, Any]], namespace: str) -> "ChunkMap":
        """Read the placement of ``namespace`` from the catalog, through a router.

        Raises:
            LookupError: the collection is not sharded.
        """
        collection = client["config"]["collections"].find_one({"_id": namespace})
        if collection is None:
            raise LookupError(f"{namespace} is not sharded")
        fields = {"_id": 0, "min": 1, "max": 1, "shard": 1}
        documents = client["config"]["chunks"].find({"uuid": collection["uuid"]}, fields).sort("min", 1)
        chunks = tuple(Chunk(document["min"], document["max"], document["shard"]) for document in documents)
        return cls(namespace, dict(collection["key"]), chunks)


def draw(chunk_map: ChunkMap, shards: Sequence[str]) -> str:
    """Draw the map: a row of blocks for each of ``shards``, and the ranges below."""
    count = len(chunk_map.chunks)
    key = ", ".join(f"{field}: {direction}" for field, direction in chunk_map.key.items())
    lines = [f"{chunk_map.namespace} {{ {key} }}: {count} chunk{'s' if count != 1 else ''}"]
    margin = max(map(len, shards), default=0)
    for shard in shards:
        owned = sum(chunk.shard == shard for chunk in chunk_map.chunks)
        lines.append(f"  {shard:<{margin}} {_row(chunk_map.chunks, shard)} {owned:>4}")
    lines.extend(_ranges(chunk_map.chunks, margin))
    return "\n".join(lines)


def _row(chunks: Sequence[Chunk], shard: str) -> str:
    """Draw one character per column; a column for several chunks is full if the shard owns any of them."""
    columns = max(1, WIDTH // len(chunks)) * len(chunks) if len(chunks) <= WIDTH else WIDTH
    owners = [
        {chunk.shard for chunk in chunks[column * len(chunks) // columns : -(-(column + 1) * len(chunks) // columns)]}
        for column in range(columns)
    ]
    return "".join(FULL if shard in owner else EMPTY for owner in owners)


def _ranges(chunks: Sequence[Chunk], margin: int) -> list[str]:
    """List the ranges, or the first and last ones if there are many."""
    shown = list(chunks)
    omitted = 0
    if len(shown) > 12:
        shown, omitted = [*shown[:5], *shown[-5:]], len(shown) - 10
    bounds = [(bound_text(chunk.minimum), bound_text(chunk.maximum), chunk.shard) for chunk in shown]
    width = max(len(minimum) for minimum, _, _ in bounds)
    lines = [f"  {'':{margin}} [{minimum:>{width}} , {maximum:<{width}}) {shard}" for minimum, maximum, shard in bounds]
    if omitted:
        lines.insert(5, f"  {'':{margin}} … {omitted} more")
    return lines


def bound_text(bound: dict[str, Any]) -> str:
    """Format the values of a shard key for the map."""
    text = ", ".join(_value(value) for value in bound.values())
    return text if len(text) <= BOUND_CHARACTERS_MAX else text[: BOUND_CHARACTERS_MAX - 1] + "…"


def _value(value: object) -> str:
    if isinstance(value, MinKey):
        return "MinKey"
    if isinstance(value, MaxKey):
        return "MaxKey"
    return str(value)
