"""Classification of cursors by the fields that their remaining documents are certain to show.

Documents that arrive with a range must be left out of older cursors. The method depends on the cursor's documents. They
show the shard key, or only the ``_id``, which allows a lookup of the key, or neither. A document shows a field only if
no stage of the pipeline may have changed its value.
"""

from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from functools import lru_cache
from math import isfinite
from typing import Any, Final

import bson

from shardwright.shardd.orphans.ownership_filter import OwnershipFilter, has_complete_filter
from shardwright.sharding.shard_key import ShardKeyPattern
from shardwright.sharding.targeting.collation import effective, is_simple
from shardwright.sharding.targeting.filters import key_ranges
from shardwright.wire.rawbson import decode_document, is_string

READ_TO_THE_END_FIRST: Final = frozenset({"$bucket", "$bucketAuto", "$count", "$facet", "$group", "$sortByCount"})
"""Stages that return nothing before they have read everything, so that an open cursor holds a complete result."""

READ_NO_DOCUMENTS: Final = frozenset({"$changeStream", "$collStats", "$indexStats", "$mergeCursors", "$planCacheStats"})

KEEPING_ALL: Final = frozenset({"$match", "$sort", "$skip", "$_internalInhibitOptimization"})
"""Stages that change no documents. A cursor that has returned a document is already past ``$skip``."""

_ID: Final = ("_id",)
_ADDING_DOCUMENTS: Final = frozenset({"$_internalUnpackBucket", "$densify", "$unionWith", "$unwind"})
"""Stages that may return more documents than they receive."""

_ADDED_BY: Final[Mapping[str, Sequence[str]]] = {
    "$lookup": ("as",),
    "$graphLookup": ("as",),
    "$geoNear": ("distanceField", "includeLocs"),
}
"""The arguments of stages that name added fields."""

_SORT_KEY: Final = "$sortKey"

_KNOWN_PROJECTIONS_MAX: Final = 1_024


class Shown(Enum):
    """Identifying fields that all documents of a cursor show."""

    KEY = "the shard key"
    ID = "the _id"
    NEITHER = "neither"


def may_return(
    command: Mapping[str, Any], hidden: OwnershipFilter, *, is_begun: bool = True, returned: int = 0
) -> bool:
    """Whether a cursor might return documents that are written to some ranges from now on.

    Args:
        command: the cursor's originating command, as ``$currentOp`` shows it.
        is_begun: whether it has returned documents, or its first batch was not requested to be empty.
    """
    most = results_max(command)
    if most is not None and returned >= most:
        return False  # mongod keeps some exhausted cursors open
    concern = command.get("readConcern", {}).get("level")
    if concern == "snapshot" or "autocommit" in command:
        return False  # a snapshot; a transaction reads one with any read concern
    if concern == "available":
        return False  # includes orphans
    pipeline = _stages(command)
    if pipeline and not READ_NO_DOCUMENTS.isdisjoint(pipeline[0]):
        return False
    if is_begun and any(not READ_TO_THE_END_FIRST.isdisjoint(stage) for stage in pipeline):
        return False
    query = _query(command, pipeline)
    if has_complete_filter(query):
        return False
    collation = effective(command.get("collation"), hidden.default_collation)
    ranges = key_ranges(bson.encode(query), hidden.pattern, simple_collation=is_simple(collation))
    return any(hidden.overlaps(low, high) for low, high in ranges.ranges)


def shown_by(command: Mapping[str, Any], pattern: ShardKeyPattern) -> Shown:
    """Classify the documents that a begun cursor has yet to return.

    Removed documents must not have been counted by a limit, nor have influenced others.

    Args:
        command: the cursor's originating command, as ``$currentOp`` shows it.
    """
    if "find" not in command:
        return shown_by_stages(_stages(command), pattern)
    if command.get("limit") or command.get("returnKey"):
        return Shown.NEITHER
    return shown_by_stages([{"$project": _without_sort_key(command.get("projection", {}))}], pattern)


def results_max(command: Mapping[str, Any]) -> int | None:
    """Return the maximum number of documents that a ``find`` or an ``aggregate`` returns; None without a limit."""
    if "find" in command:
        return _count(command.get("limit")) or None
    return results_max_of_stages(_stages(command))


def results_max_of_stages(stages: Sequence[Mapping[str, Any]]) -> int | None:
    """Compute `results_max` for a pipeline."""
    most: int | None = None
    for stage in stages:
        ((name, argument),) = stage.items() if len(stage) == 1 else (("", None),)
        if name in ("$limit", "$sample"):
            count = _count(argument.get("size") if isinstance(argument, Mapping) else argument)
            if count is not None:
                most = count if most is None else min(most, count)
        elif name in _ADDING_DOCUMENTS:
            most = None
    return most


@lru_cache(_KNOWN_PROJECTIONS_MAX)
def shown_by_projection(projection: bytes, pattern: bytes) -> Shown:
    """Compute `shown_by` for a ``find`` without limit."""
    fields = decode_document(projection)
    return shown_by_stages([{"$project": _without_sort_key(fields)}], ShardKeyPattern.from_bson(pattern))


def shown_by_stages(stages: Sequence[Mapping[str, Any]], pattern: ShardKeyPattern) -> Shown:
    """Compute `shown_by` for the documents that a pipeline returns."""
    if _keep(stages, [each.name.decode() for each in pattern.fields]):
        return Shown.KEY
    return Shown.ID if _keep(stages, _ID) else Shown.NEITHER


def _keep(stages: Sequence[Mapping[str, Any]], paths: Sequence[str]) -> bool:
    return all(_keeps(stage, path) for stage in stages for path in paths)


def _keeps(stage: Mapping[str, Any], path: str) -> bool:
    """Whether a stage certainly keeps the value at `path` in each document that it passes on."""
    if len(stage) != 1:
        return False
    ((name, argument),) = stage.items()
    if name in KEEPING_ALL:
        return True
    if name == "$project":
        return isinstance(argument, Mapping) and _projects(argument, path)
    changed = _changed_by(name, argument)
    return changed is not None and not any(_overlaps(each, path) for each in changed)


def _changed_by(name: str, argument: Any) -> Sequence[str] | None:  # noqa: ANN401 - any BSON value
    """Return the fields that a stage other than ``$project`` adds, changes or removes; None if it may do more."""
    if name in ("$addFields", "$set"):
        return list(argument) if isinstance(argument, Mapping) else None
    if name == "$unset":
        return [argument] if is_string(argument) else argument if isinstance(argument, list) else None
    if name == "$unwind":
        options = {"path": argument} if is_string(argument) else argument
        if not isinstance(options, Mapping) or not is_string(options.get("path")):
            return None
        index = options.get("includeArrayIndex")
        return [options["path"].removeprefix("$"), *([index] if is_string(index) else [])]
    if name not in _ADDED_BY or not isinstance(argument, Mapping):
        return None
    return [argument[each] for each in _ADDED_BY[name] if is_string(argument.get(each))]


def _projects(projection: Mapping[str, Any], path: str) -> bool:
    """Whether a projection keeps the value at `path`."""
    fields = list(_flattened(projection))
    concerning = [(name, value) for name, value in fields if _overlaps(name, path)]
    if concerning:
        return all(_is_included(value) and _is_part(path, of=name) for name, value in concerning)
    others = [value for name, value in fields if not _is_part(name, of="_id")]
    if _is_part(path, of="_id"):
        return True
    if others:
        return all(_is_excluded(value) for value in others)
    return all(_is_excluded(value) for _, value in fields)


def _flattened(projection: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in projection.items():
        if isinstance(value, Mapping) and value and not any(each.startswith("$") for each in value):
            yield from _flattened(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def _without_sort_key(projection: Mapping[str, Any]) -> Mapping[str, Any]:
    """Remove the field that routers add to a projection to merge sorted results."""
    return {name: value for name, value in projection.items() if name != _SORT_KEY}


def _query(command: Mapping[str, Any], pipeline: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return the query that selects the documents a command reads."""
    if "find" in command:
        query = command.get("filter", {})
    else:
        first = pipeline[0] if pipeline else {}
        query = first.get("$match") or first.get("$geoNear", {}).get("query") or {}
    return query if isinstance(query, Mapping) else {}


def _count(value: object) -> int | None:
    """Convert a number of documents; None for a value that mongod refuses."""
    return int(value) if isinstance(value, (int, float)) and isfinite(value) else None


def _stages(command: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    pipeline = command.get("pipeline", ())
    return pipeline if isinstance(pipeline, Sequence) else ()


def _is_included(value: object) -> bool:
    return isinstance(value, (bool, int, float)) and bool(value)


def _is_excluded(value: object) -> bool:
    return isinstance(value, (bool, int, float)) and not value


def _overlaps(path: str, other: str) -> bool:
    return _is_part(path, of=other) or _is_part(other, of=path)


def _is_part(path: str, *, of: str) -> bool:
    return path == of or path.startswith(of + ".")
