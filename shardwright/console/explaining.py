"""Explanation of an operation's targets: predicates, bounds, chunks, shards, reasons, and advice to target fewer."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from shardwright.console.collections import shard_names
from shardwright.console.placements import Piece, Pieces, predicted
from shardwright.console.prediction import NotPredictable, Part, Prediction, Rule, request_of
from shardwright.console.reader import Document, Reader
from shardwright.console.shell_syntax import SyntaxFault, parsed, shell_text
from shardwright.sharding.targeting.filters import KeyRanges, key_ranges
from shardwright.sharding.targeting.values import effective, is_simple
from shardwright.wire.errors import CommandError
from shardwright.wire.rawbson import decode_document
from shardwright.wire.request import Request

CHUNKS_MAX: Final = 50

_OPERATORS: Final = {
    "$eq": "= {}",
    "$gt": "> {}",
    "$gte": "≥ {}",
    "$lt": "< {}",
    "$lte": "≤ {}",
    "$in": "in {}",
}


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


def predicate(path: str, kind: object, filter_: Mapping[str, Any]) -> Document:
    """Return the conditions of a filter on one field of the shard key.

    Args:
        path: the field.
        kind: 1, -1 or ``hashed``.
    """
    conditions = list(_conditions(path, filter_))
    texts = [text for text, _ in conditions]
    return {
        "field": path,
        "isHashed": kind == "hashed",
        "conditions": texts,
        "isFixed": any(is_fixed for _, is_fixed in conditions),
        "isRestricted": bool(texts),
    }


def _conditions(path: str, filter_: Mapping[str, Any]) -> list[tuple[str, bool]]:
    found: list[tuple[str, bool]] = []
    for name, value in filter_.items():
        if name == "$and" and isinstance(value, list):
            for each in value:
                found += _conditions(path, each) if isinstance(each, Mapping) else []
        elif name == path and isinstance(value, Mapping) and any(each.startswith("$") for each in value):
            found += [
                (_OPERATORS[each].format(shell_text(operand)), each == "$eq")
                for each, operand in value.items()
                if each in _OPERATORS
            ]
        elif name == path:
            found.append((f"= {shell_text(value)}", True))
    return found


def reasons(
    predicates: Sequence[Document],
    ranges: KeyRanges | None,
    count: int,
    contacted: Sequence[str],
    shards: Sequence[str],
) -> list[str]:
    """Explain in sentences why a filter targets its shards.

    Args:
        predicates: of each field of the shard key.
        ranges: the key ranges of possible matches; None if the filter is not valid.
        count: number of chunks that can match.
        contacted: the shards that receive the operation.
    """
    first, fixed = predicates[0], [each["field"] for each in predicates if each["isFixed"]]
    found = []
    if ranges is None or ranges.is_everything:
        found.append(
            f"The filter says nothing about {first['field']}, the first field of the shard key, so each chunk may have "
            "matching documents."
            if not first["isRestricted"]
            else f"The condition on {first['field']} does not limit its "
            f"{'hash' if first['isHashed'] else 'values'}, so each chunk may have matching documents."
        )
    elif ranges.point is not None:
        found.append("The filter gives a value for each field of the shard key: exactly one chunk can match.")
    elif len(fixed) == len(predicates):
        found.append("The filter gives a few values for each field of the shard key.")
    elif first["isFixed"]:
        limited = [each["field"] for each in predicates if each["isRestricted"] and not each["isFixed"]]
        also = f" and limits {', '.join(limited)}" if limited else ""
        found.append(f"The filter fixes {', '.join(fixed)}{also}: a range of the shard key can match.")
    else:
        found.append(f"The filter limits {first['field']} to ranges of the shard key.")
    found.append(f"{count:,} {'chunk' if count == 1 else 'chunks'} can match.")
    if len(contacted) == 1:
        found.append(f"All of them are on {contacted[0]}, the only shard that receives the operation.")
    elif len(contacted) < len(shards):
        found.append(f"They are on {len(contacted)} of {len(shards)} shards.")
    else:
        found.append(f"All {len(shards)} shards receive the operation, and the router merges their results.")
    return found


def advice(predicates: Sequence[Document], contacted: Sequence[str]) -> list[str]:
    """Suggest in sentences how a filter would target fewer shards."""
    if len(contacted) <= 1:
        return []
    first = predicates[0]
    if first["isHashed"] and not first["isFixed"]:
        return [
            f"Give a value for {first['field']}: a hashed field is targeted by equality or $in only, ranges are spread "
            "over all shards."
        ]
    if not first["isRestricted"]:
        return [
            f"Add a condition on {first['field']}, best an equality; then only the shards with its range are asked."
        ]
    missing = [each["field"] for each in predicates if not each["isFixed"]]
    if missing:
        return [f"Add an equality on {', '.join(missing)} to narrow the range further."]
    return []
