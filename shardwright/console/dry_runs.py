"""Dry runs of actions that move data: how much would move from where to where, and how long that takes.

They are estimates. Chunks of a collection on one shard count as equally large, each goes to the permitted shard with
the least data of its collection, and the time comes from the rate of past moves.
"""

import asyncio
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from shardwright.console.chunk_reads import chunk_counts
from shardwright.console.collections import LISTED_MAX, collection_entry, zones_of
from shardwright.console.reader import Document, Reader, maybe, partly
from shardwright.console.shell_syntax import extended_document

Arguments = Mapping[str, str]
Counts = dict[str | None, dict[str, int]]
"""Chunks by zone, None for ranges without a zone, and by shard."""

_CHANGES_MAX: Final = 400
_RANGES_MAX: Final = 1_000
_SIZES_SECONDS: Final = 60.0


@dataclass(slots=True)
class DryRun:
    """The expected effect of an action.

    Attributes:
        moves: chunks by collection, source and destination.
        bytes_each: mean size of a chunk by collection and shard, where it is known.
        ranges: ``ns``, ``min`` and ``max`` of the zone's ranges that the moves are limited to.
        notes: further effects, and reasons why something stays.
        is_copy: whether the data is copied by all shards at once, not moved chunk by chunk.
    """

    bytes_each: Mapping[tuple[str, str], float]
    moves: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    ranges: Sequence[Document] = ()
    notes: list[str] = field(default_factory=list)
    is_copy: bool = False

    def document(self, rate: float | None, refusals: Sequence[str]) -> dict[str, Any]:
        """Return the endpoint's reply.

        Args:
            rate: bytes per second of past moves; None without any.
        """
        rows: list[Document] = [
            {
                "ns": namespace,
                "from": origin,
                "to": to,
                "chunks": chunks,
                "bytes": None if each is None else round(each * chunks),
            }
            for (namespace, origin, to), chunks in sorted(self.moves.items())
            for each in [self.bytes_each.get((namespace, origin))]
        ]
        known = [row for row in rows if row["bytes"] is not None]
        # A shard takes part in one move at a time, so the busiest one determines the time.
        by_shard: Counter[str] = Counter()
        for row in known:
            by_shard[row["to"]] += row["bytes"]
            if not self.is_copy:
                by_shard[row["from"]] += row["bytes"]
        busiest = max(by_shard.values(), default=0)
        return {
            "moves": rows,
            "chunks": sum(self.moves.values()),
            "bytes": sum(row["bytes"] for row in known) if len(known) == len(rows) else None,
            "bytesPerSecond": rate,
            "seconds": busiest / rate if rate and len(known) == len(rows) else None,
            "ranges": list(self.ranges),
            "notes": self.notes,
            "refusals": list(refusals),
        }


def spread(chunks: int, amounts: Mapping[str, int]) -> Counter[str]:
    """Distribute chunks so that each goes to the shard with the fewest; return how many each shard receives.

    Args:
        amounts: the present chunks of the permitted shards, of at least one.
    """
    # Fill all shards to the highest level that the chunks allow, then give the rest to the lowest shards, one each.
    level = bisect_right(range(max(amounts.values()) + chunks), chunks, key=lambda level: _below(level, amounts)) - 1
    received = Counter({shard: level - amount for shard, amount in amounts.items() if amount < level})
    lowest = sorted(shard for shard, amount in amounts.items() if amount <= level)
    received.update(lowest[: chunks - received.total()])
    return received


def _below(level: int, amounts: Mapping[str, int]) -> int:
    """Return the number of chunks that fill all shards up to a level."""
    return sum(max(0, level - amount) for amount in amounts.values())


def taken_for(amounts: Mapping[str, int], held: int = 0) -> Counter[str]:
    """Return the number of chunks that a shard takes from each of the others until all have about the same number.

    Args:
        held: the number of chunks that the shard has already.
    """
    # The fullest shard always gives the next chunk, so the shards above one level fall to it, and some by one more.
    number = bisect_left(range(sum(amounts.values())), True, key=lambda number: _is_even(number, amounts, held))
    level = _level_after(number, amounts)
    taken = Counter({shard: amount - level for shard, amount in amounts.items() if amount > level})
    fullest = sorted(shard for shard, amount in amounts.items() if amount >= level)
    taken.update(fullest[: number - taken.total()])
    return taken


def _is_even(number: int, amounts: Mapping[str, int], held: int) -> bool:
    """Whether no shard exceeds the receiving one by more than one chunk after it took a number of chunks."""
    level = _level_after(number, amounts)
    rest = number - _above(level, amounts)
    fullest = level - (rest >= sum(amount >= level for amount in amounts.values()))
    return fullest - 1 <= held + number


def _level_after(number: int, amounts: Mapping[str, int]) -> int:
    """Return the lowest maximum of chunks on a shard after a number of chunks has left the fullest shards."""
    levels = range(max(amounts.values(), default=0))
    return bisect_left(levels, True, key=lambda level: _above(level, amounts) <= number)


def _above(level: int, amounts: Mapping[str, int]) -> int:
    """Return the number of chunks that shards have above a level."""
    return sum(max(0, amount - level) for amount in amounts.values())


@dataclass(frozen=True, slots=True)
class _Cluster:
    """The shards with their zones, and the sharded collections."""

    shards: Mapping[str, Sequence[str]]
    entries: Sequence[Document]
    bytes_by_shard: Mapping[tuple[str, str], int]

    def permitted(self, zone: str | None, without: str = "") -> list[str]:
        """Return the shards that may have chunks of a zone; all for ranges without a zone."""
        return [name for name, zones in self.shards.items() if name != without and (zone is None or zone in zones)]


async def _cluster(reader: Reader, refusals: list[str]) -> _Cluster:
    unknown: dict[tuple[str, str], int] = {}
    shards, entries, sizes = await asyncio.gather(
        reader.find("config", "shards", {}, sort=[("_id", 1)]),
        reader.find("config", "collections", {"unsplittable": {"$ne": True}}, sort=[("_id", 1)], limit=LISTED_MAX),
        partly(reader, "distribution", _SIZES_SECONDS, lambda: _distribution(reader), unknown, refusals),
    )
    names = {each["_id"]: tuple(each.get("tags", ())) for each in shards if not each.get("draining")}
    return _Cluster(names, [each for each in entries if not each["_id"].startswith("config.")], sizes)


async def _distribution(reader: Reader) -> dict[tuple[str, str], int]:
    found = await reader.aggregate("admin", None, [{"$shardedDataDistribution": {}}])
    return {
        (each["ns"], shard["shardName"]): int(shard.get("ownedSizeBytes") or 0)
        for each in found
        for shard in each["shards"]
    }


async def _chunks_by_zone(reader: Reader, entry: Document) -> Counts:
    ranges = await zones_of(reader, entry["_id"])
    total = {shard: each["chunks"] for shard, each in (await chunk_counts(reader, entry["uuid"])).items()}
    found: dict[str | None, Counter[str]] = {}
    for each in ranges:
        inside = await _chunks_where(reader, entry, {"min": {"$gte": each["min"], "$lt": each["max"]}})
        found.setdefault(each["zone"], Counter()).update(inside)
    rest = Counter(total)
    for inside in found.values():
        rest.subtract(inside)
    return {None: dict(+rest), **{zone: dict(inside) for zone, inside in found.items()}}


async def _chunks_where(reader: Reader, entry: Document, condition: Mapping[str, Any]) -> dict[str, int]:
    """Count the chunks that meet a condition, by shard."""
    grouping = {"$group": {"_id": "$shard", "chunks": {"$sum": 1}}}
    rows = await reader.aggregate("config", "chunks", [{"$match": {"uuid": entry["uuid"], **condition}}, grouping])
    return {row["_id"]: row["chunks"] for row in rows}


async def _chunks_in(reader: Reader, entry: Document, ranges: Iterable[Document]) -> dict[str, int]:
    """Count the chunks that overlap any of the ranges, by shard."""
    overlaps = [{"min": {"$lt": each["max"]}, "max": {"$gt": each["min"]}} for each in ranges]
    return await _chunks_where(reader, entry, {"$or": overlaps})


def _sizes(cluster: _Cluster, counts: Mapping[str, Counts]) -> dict[tuple[str, str], float]:
    """Return the mean size of a chunk by collection and shard."""
    chunks: Counter[tuple[str, str]] = Counter()
    for namespace, by_zone in counts.items():
        for by_shard in by_zone.values():
            chunks.update({(namespace, shard): number for shard, number in by_shard.items()})
    return {
        place: cluster.bytes_by_shard[place] / number
        for place, number in chunks.items()
        if number and place in cluster.bytes_by_shard
    }


async def _counts(reader: Reader, entries: Iterable[Document]) -> dict[str, Counts]:
    return {each["_id"]: await _chunks_by_zone(reader, each) for each in entries}


async def drain(reader: Reader, given: Arguments, refusals: list[str]) -> DryRun:
    """Return the moves that empty a shard."""
    shard, cluster = given["shard"], await _cluster(reader, refusals)
    counts = await _counts(reader, cluster.entries)
    found = DryRun(_sizes(cluster, counts))
    for namespace, by_zone in counts.items():
        for zone, by_shard in by_zone.items():
            chunks, others = by_shard.get(shard, 0), cluster.permitted(zone, without=shard)
            if chunks and not others:
                where = "no other shard is left" if zone is None else f"no other shard is in zone {zone}"
                found.notes.append(f"{chunks:,} chunks of {namespace} cannot leave {shard}: {where}.")
            elif chunks:
                received = spread(chunks, {each: by_shard.get(each, 0) for each in others})
                found.moves.update({(namespace, shard, to): number for to, number in received.items()})
    databases = await reader.find("config", "databases", {"primary": shard}, sort=[("_id", 1)])
    if databases:
        names = ", ".join(each["_id"] for each in databases)
        found.notes.append(f"{shard} is the primary shard of {names}: move each of them with movePrimary.")
    found.notes.append("Run the command again when all has moved: only then is the shard removed.")
    return found


async def add_shard(reader: Reader, given: Arguments, refusals: list[str]) -> DryRun:
    """Return the moves by which the balancer fills a new shard."""
    cluster = await _cluster(reader, refusals)
    counts = await _counts(reader, cluster.entries)
    found = DryRun(_sizes(cluster, counts))
    new = given["host"].partition("/")[0]
    for namespace, by_zone in counts.items():
        taken = taken_for(by_zone[None])
        found.moves.update({(namespace, shard, new): number for shard, number in taken.items()})
    if any(len(by_zone) > 1 for by_zone in counts.values()):
        found.notes.append("The new shard has no zone, so it receives only ranges without a zone.")
    found.notes.append("The moves are the balancer's: nothing moves while it is off.")
    return found


async def assign_zone(reader: Reader, given: Arguments, refusals: list[str]) -> DryRun:
    """Return the moves that bring a range to the shards of its zone."""
    zone = given["zone"]
    limits = {"ns": given["ns"], "min": extended_document(given["min"]), "max": extended_document(given["max"])}
    entry, cluster = await collection_entry(reader, given["ns"]), await _cluster(reader, refusals)
    inside = await _chunks_in(reader, entry, [limits])
    found = DryRun(_sizes(cluster, {given["ns"]: {None: await _total(reader, entry)}}), ranges=[limits])
    shards = cluster.permitted(zone)
    bring_to(found, given["ns"], inside, shards)
    if not shards:
        found.notes.append(f"No shard is in zone {zone}: add one to it first, otherwise nothing moves.")
    found.notes.append("Chunks that cross a bound are split first. The moves are the balancer's.")
    return found


def bring_to(found: DryRun, namespace: str, inside: Mapping[str, int], shards: Sequence[str]) -> Counter[str]:
    """Add the moves of chunks that are not on one of the shards; return the chunks that each shard has then."""
    amounts = Counter({each: inside.get(each, 0) for each in shards})
    for shard, chunks in sorted(inside.items()):
        if shards and shard not in shards:
            received = spread(chunks, amounts)
            amounts.update(received)
            found.moves.update({(namespace, shard, to): number for to, number in received.items()})
    return amounts


async def add_shard_to_zone(reader: Reader, given: Arguments, refusals: list[str]) -> DryRun:
    """Return the moves that give a shard its part of a zone's ranges."""
    shard, zone = given["shard"], given["zone"]
    cluster, tags = await asyncio.gather(
        _cluster(reader, refusals),
        reader.find("config", "tags", {"tag": zone}, sort=[("ns", 1), ("min", 1)], limit=_RANGES_MAX),
    )
    ranges = [{"ns": each["ns"], "min": each["min"], "max": each["max"]} for each in tags]
    concerned = {each["ns"] for each in ranges}
    entries = [each for each in cluster.entries if each["_id"] in concerned]
    totals: dict[str, Counts] = {each["_id"]: {None: await _total(reader, each)} for each in entries}
    found = DryRun(_sizes(cluster, totals), ranges=ranges)
    shards = cluster.permitted(zone)
    if shard in shards:
        found.notes.append(f"{shard} is in zone {zone} already.")
    elif shard not in cluster.shards:
        found.notes.append(f"{shard} is not among the shards that receive chunks: it is unknown, or it is drained.")
    else:
        for entry in entries:
            namespace = entry["_id"]
            inside = await _chunks_in(reader, entry, [each for each in ranges if each["ns"] == namespace])
            amounts = bring_to(found, namespace, inside, [*shards, shard])
            taken = taken_for({each: amounts[each] for each in shards}, amounts[shard])
            found.moves.update({(namespace, each, shard): number for each, number in taken.items()})
    if not ranges:
        found.notes.append(f"No range is assigned to zone {zone} yet, so nothing moves.")
    found.notes.append("Chunks without a zone may be on any shard. The moves are the balancer's.")
    return found


async def _total(reader: Reader, entry: Document) -> dict[str, int]:
    return {shard: each["chunks"] for shard, each in (await chunk_counts(reader, entry["uuid"])).items()}


async def reshard(reader: Reader, given: Arguments, refusals: list[str]) -> DryRun:
    """Return the copies that a resharding makes: of every shard's documents, to all shards alike."""
    entry, cluster = await collection_entry(reader, given["ns"]), await _cluster(reader, refusals)
    total = await _total(reader, entry)
    found = DryRun(_sizes(cluster, {given["ns"]: {None: total}}), is_copy=True)
    for shard, chunks in total.items():
        received = spread(chunks, dict.fromkeys(cluster.shards, 0))
        found.moves.update({(given["ns"], shard, to): number for to, number in received.items()})
    found.notes.append("All documents are copied, so each shard needs room for its part twice until the end.")
    found.notes.append("Writes to the collection pause for a moment at the end. Nothing changes if it is aborted.")
    return found


DRY_RUNS: Final[Mapping[str, Callable[[Reader, Arguments, list[str]], Awaitable[DryRun]]]] = {
    "drain-shard": drain,
    "add-shard": add_shard,
    "add-shard-to-zone": add_shard_to_zone,
    "assign-zone": assign_zone,
    "reshard-collection": reshard,
}
"""The dry runs by the names of actions."""


async def dry_run(reader: Reader, action: str, given: Arguments) -> dict[str, Any] | None:
    """Return the dry run of an action; None if the action has none.

    Raises:
        Refused: the user may not read the catalog, or the collection is not sharded.
    """
    run = DRY_RUNS.get(action)
    if run is None:
        return None
    refusals: list[str] = []
    found, rate = await asyncio.gather(run(reader, given, refusals), _rate(reader, refusals))
    return found.document(rate, refusals)


async def _rate(reader: Reader, refusals: list[str]) -> float | None:
    """Return the bytes per second of past moves; None without any."""
    query = {"what": {"$in": ["moveChunk.start", "moveChunk.commit"]}}
    events = await maybe(
        reader.find("config", "changelog", query, sort=[("time", -1)], limit=_CHANGES_MAX), [], refusals
    )
    return rate_of(reversed(events))


def rate_of(events: Iterable[Document]) -> float | None:
    """Return the bytes per second of moves in the change log, the oldest event first."""
    started: dict[tuple[str, str], Any] = {}
    transferred, seconds = 0, 0.0
    for each in events:
        place = (each.get("ns", ""), str(each["details"].get("min")))
        if each["what"] == "moveChunk.start":
            started[place] = each["time"]
        elif place in started:
            transferred += each["details"].get("counts", {}).get("clonedBytes", 0)
            seconds += (each["time"] - started.pop(place)).total_seconds()
    return transferred / seconds if transferred and seconds else None
