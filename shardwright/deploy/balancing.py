"""The distribution of chunks in the terminal: a map of a collection's chunks, and ``shardwright balancer``.

The map has one row per shard and one block per chunk. ``balancer`` shows the balancer's switch and state, and the
decisions of its next round.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from bson import MaxKey, MinKey
from bson.datetime_ms import DatetimeMS
from pymongo import MongoClient
from pymongo.errors import PyMongoError

from shardwright.deploy.errors import DeployError, reason
from shardwright.deploy.mongod import client_of

# Columns for the blocks; a collection with more chunks than half of this shows several chunks as one block.
MAP_WIDTH = 64

FULL, EMPTY = "█", "·"
BOUND_CHARACTERS_MAX = 24

BALANCER_ACTIONS: Final = ("status", "start", "stop")

_VERBS: Final = {"moveChunk": "move", "moveRange": "move", "mergeChunks": "merge", "measureChunk": "measure"}


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
    columns = max(1, MAP_WIDTH // len(chunks)) * len(chunks) if len(chunks) <= MAP_WIDTH else MAP_WIDTH
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
    if isinstance(value, DatetimeMS):
        return f"Date({int(value)})"
    return str(value)


def balancer(uri: str, log_in: Mapping[str, Any], action: str) -> dict[str, Any]:
    """Start or stop the balancer if requested, and return ``mode``, ``inBalancerRound`` and ``numBalancerRounds``."""
    commands = {"start": "balancerStart", "stop": "balancerStop"}
    try:
        with client_of(uri, log_in) as client:
            if action in commands:
                client.admin.command(commands[action])
            reply = client.admin.command("balancerStatus")
    except PyMongoError as error:
        raise DeployError(f"the cluster refused: {reason(error)}") from error
    return {name: reply[name] for name in ("mode", "inBalancerRound", "numBalancerRounds")}


def explanation(uri: str, log_in: Mapping[str, Any]) -> dict[str, Any]:
    """Return the decisions of the next balancer round, with reasons."""
    try:
        with client_of(uri, log_in) as client:
            reply = client.admin.command("balancerExplain")
    except PyMongoError as error:
        raise DeployError(f"the cluster refused: {reason(error)}") from error
    return {
        name: value for name, value in reply.items() if not name.startswith("$") and name not in ("ok", "operationTime")
    }


def status_text(status: dict[str, Any]) -> str:
    """Describe the state of the balancer in one line."""
    doing = "in a round" if status["inBalancerRound"] else "between two rounds"
    return (
        f"the balancer is {'off' if status['mode'] == 'off' else 'on'}, {doing}, {status['numBalancerRounds']} so far"
    )


def explanation_text(explained: dict[str, Any]) -> str:
    """Describe the next round, a line for each decision and for each collection, shard or zone that it skips."""
    switch = "on" if explained["enabled"] else "off (nothing of this is done)"
    lines = [f"policy {explained['balancerPolicy']}, the balancer is {switch}"]
    lines += [_decision_text(each) for each in explained["decisions"]] or ["nothing to do"]
    for each in explained["skipped"]:
        about = ", ".join(str(each[name]) for name in ("ns", "shard", "zone", "rule") if name in each)
        chunk = f" {_bounds_text(each)}" if "min" in each else ""
        lines.append(f"  left alone: {about}{chunk}: {each['reason']}")
    for each in explained["heldBack"]:
        lines.append(f"  held back: {each['ns']} from {bound_text(each['min'])}: {each['error']}")
    return "\n".join(lines)


def _decision_text(decision: dict[str, Any]) -> str:
    bounds = _bounds_text(decision)
    if decision["action"] == "split":
        points = ", ".join(map(bound_text, decision["splitKeys"]))
        return f"  split {decision['ns']} {bounds} on {decision['shard']} at {points}: {decision['rule']}"
    shown = ("action", "ns", "shard", "from", "to", "min", "max", "rule", "zone")
    numbers = ", ".join(f"{name} {value:,}" for name, value in decision.items() if name not in shown)
    zone = f", zone {decision['zone']}" if "zone" in decision else ""
    where = f"on {decision['shard']}" if "shard" in decision else f"{decision['from']} -> {decision['to']}"
    verb = _VERBS[decision["action"]]
    return f"  {verb} {decision['ns']} {bounds} {where}: {decision['rule']}{zone} ({numbers})"


def _bounds_text(document: dict[str, Any]) -> str:
    return f"[{bound_text(document['min'])}, {bound_text(document['max']) if 'max' in document else '...'})"
