"""Explanation of an operation's targets: predicates, bounds, chunks, shards, and changes that would target it."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from shardwright.console.collections import shard_names
from shardwright.console.placements import Piece, Pieces, predicted
from shardwright.console.prediction import NotPredictable, Part, Prediction, Rule, request_of
from shardwright.console.reader import Document, Reader
from shardwright.console.reasons import advice, predicate, reasons
from shardwright.console.shell_syntax import SyntaxFault, parsed
from shardwright.console.shell_text import shell_text
from shardwright.sharding.targeting.collation import effective, is_simple
from shardwright.sharding.targeting.filters import KeyRanges, key_ranges
from shardwright.wire.errors import CommandError
from shardwright.wire.rawbson import decode_document
from shardwright.wire.request import Request

CHUNKS_MAX: Final = 50


async def explained(reader: Reader, text: str, db: str) -> dict[str, Any]:
    """Explain the routing of a command.

    Args:
        reader: reads the catalog, and runs the router's explain, which does not run the command.
        text: the command, as in mongosh.
        db: the database, unless the text names one.

    Raises:
        SyntaxFault: the text cannot be parsed, or the command is not routed by a shard key.
    """
    given = parsed(text, db)
    try:
        request = request_of(given.command, given.db)
        found = await predicted(reader, request)
    except NotPredictable as error:
        raise SyntaxFault(str(error)) from error
    prediction = found.prediction
    contacted, stage = await _contacted(reader, given.command, given.db, prediction)
    filter_ = {} if prediction.filter is None else decode_document(prediction.filter)
    document = {
        "ns": f"{given.db}.{given.collection}",
        "command": shell_text(given.command),
        "filter": filter_,
        "stage": stage,
        "shards": contacted,
        "allShards": await shard_names(reader),
        "predictedShards": list(prediction.shards),
        "refusal": None if prediction.refusal is None else prediction.refusal.message,
    }
    if found.entry is None or found.pieces is None:
        return {**document, "isSharded": False, **_NOT_SHARDED}
    return {**document, "isSharded": True, **_placed(request, prediction, found.entry, found.pieces, document)}


_NOT_SHARDED: Final[Mapping[str, Any]] = {
    "key": None,
    "predicates": [],
    "isTargeted": True,
    "chunks": [],
    "chunkCount": 0,
    "chunksOfAll": 0,
    "reasons": ["The collection is not sharded: all of it is on the primary shard of its database."],
    "advice": [],
}

_EXPLAINED: Final = frozenset({"find", "aggregate", "count", "distinct", "update", "delete", "findAndModify"})
"""Commands that routers explain."""


async def _contacted(
    reader: Reader, command: Mapping[str, Any], db: str, prediction: Prediction
) -> tuple[list[str], str]:
    """Return the shards and outermost stage of the router's explain; for other commands the predicted shards."""
    name = next(iter(command))
    statements = command.get("updates") or command.get("deletes") or ()
    if prediction.refusal is not None or name not in _EXPLAINED or len(statements) > 1:
        return list(prediction.shards), ""
    own = {field: value for field, value in command.items() if field != "$db"}
    reply = await reader.command({"explain": own, "verbosity": "queryPlanner"}, db)
    if isinstance(reply.get("shards"), dict):
        return sorted(reply["shards"]), "aggregation"
    plan = reply.get("queryPlanner", {}).get("winningPlan", {})
    shards = sorted(str(each["shardName"]) for each in plan.get("shards", ()) if "shardName" in each)
    return shards, str(plan.get("stage", ""))


def _placed(
    request: Request, prediction: Prediction, entry: Document, pieces: Pieces, document: Mapping[str, Any]
) -> dict[str, Any]:
    key, contacted, shards = entry["key"], document["shards"], document["allShards"]
    part = max(prediction.parts, key=lambda each: len(each.shards))
    ranges = ranges_of(request, part, pieces)
    matching = _matching(part, ranges, pieces)
    count = sum(piece.chunks for piece in matching)
    predicates = [predicate(path, kind, document["filter"]) for path, kind in key.items()]
    return {
        "key": key,
        "predicates": predicates,
        "isTargeted": len(contacted) < len(shards) or len(shards) == 1,
        "chunks": _listed(matching),
        "chunkCount": count,
        "chunksOfAll": sum(piece.chunks for piece in pieces.pieces),
        "reasons": _reasons(prediction, part, predicates, ranges, count, contacted, shards),
        "advice": _advice(prediction, predicates, contacted),
    }


def ranges_of(request: Request, part: Part, pieces: Pieces) -> KeyRanges | None:
    """Return the key ranges of possible matches of a part; None if it has no valid filter."""
    if part.filter is None:
        return None
    given = request.raw_object(b"collation")
    collation = effective(None if given is None else decode_document(given), pieces.collection.default_collation)
    try:
        return key_ranges(part.filter, pieces.key_pattern, simple_collation=is_simple(collation))
    except CommandError:
        return None


def _matching(part: Part, ranges: KeyRanges | None, pieces: Pieces) -> list[Piece]:
    if part.rule is Rule.DOCUMENT:
        return [pieces.pieces[at] for at in sorted(pieces.touched)]
    if ranges is None:
        return list(pieces.pieces)
    return [piece for piece in pieces.pieces if _overlaps(ranges, piece.low, piece.high)]


def _overlaps(ranges: KeyRanges, low: bytes, high: bytes) -> bool:
    return any(start < high and low < end for start, end in ranges.ranges)


def _listed(matching: Sequence[Piece]) -> list[Document]:
    """Return the first matching chunks, if they are known one by one."""
    if any(piece.chunks > 1 for piece in matching):
        return []
    return [{"min": each.min, "max": each.max, "shard": min(each.shards, default="")} for each in matching[:CHUNKS_MAX]]


def _reasons(
    prediction: Prediction,
    part: Part,
    predicates: Sequence[Document],
    ranges: KeyRanges | None,
    count: int,
    contacted: Sequence[str],
    shards: Sequence[str],
) -> list[str]:
    if prediction.refusal is not None:
        return [f"The router refuses it: {prediction.refusal.message}"]
    if part.rule is Rule.DOCUMENT:
        found = ["Each document goes to the shard that owns its shard key."]
    elif part.rule is Rule.DESCRIBES:
        found = ["Each shard of the collection describes itself, whatever the filter is."]
    else:
        found = reasons(predicates, ranges, count, contacted, shards)
    if part.rule is Rule.ALL_SHARDS:
        found.append("A write that several shards may have to execute goes to all shards of the cluster.")
    return found


def _advice(prediction: Prediction, predicates: Sequence[Document], contacted: Sequence[str]) -> list[str]:
    if prediction.refusal is not None:
        names = ", ".join(each["field"] for each in predicates)
        return [f"Give a value for each field of the shard key ({names}) by equality."]
    return [] if prediction.parts[0].rule in (Rule.DOCUMENT, Rule.DESCRIBES) else advice(predicates, contacted)
