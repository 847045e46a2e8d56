"""What a cursor's originating command says about the documents that it has yet to return."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import bson

from shardwright.shardd.orphans.ownership_filter import OwnershipFilter
from shardwright.sharding.shard_key import ShardKeyPattern
from shardwright.sharding.targeting.collation import effective, is_simple
from shardwright.sharding.targeting.filters import key_ranges

_READ_TO_THE_END_FIRST: Final = frozenset({"$bucket", "$bucketAuto", "$count", "$facet", "$group", "$sortByCount"})
"""Stages that return nothing before they have read everything, so that an open cursor holds a complete result."""

_READ_NO_DOCUMENTS: Final = frozenset(
    {"$changeStream", "$collStats", "$indexStats", "$mergeCursors", "$planCacheStats"}
)


def may_return(command: Mapping[str, Any], hidden: OwnershipFilter, *, is_begun: bool = True) -> bool:
    """Whether a cursor might return documents that are written to some ranges from now on.

    Args:
        command: the cursor's originating command, as ``$currentOp`` shows it.
        hidden: the ranges.
        is_begun: it has returned documents, or its first batch was not empty by request.
    """
    if command.get("readConcern", {}).get("level") == "snapshot":
        return False
    pipeline = _stages(command)
    if pipeline and not _READ_NO_DOCUMENTS.isdisjoint(pipeline[0]):
        return False
    if is_begun and any(not _READ_TO_THE_END_FIRST.isdisjoint(stage) for stage in pipeline):
        return False
    query = command.get("filter", {}) if "find" in command else pipeline[0].get("$match", {}) if pipeline else {}
    collation = effective(command.get("collation"), hidden.default_collation)
    ranges = key_ranges(bson.encode(query), hidden.pattern, simple_collation=is_simple(collation))
    return any(hidden.overlaps(low, high) for low, high in ranges.ranges)


def shows_shard_key(command: Mapping[str, Any], pattern: ShardKeyPattern) -> bool:
    """Whether a cursor returns all matching documents with their shard keys, so that some can be removed.

    Args:
        command: the cursor's originating command, as ``$currentOp`` shows it.
        pattern: the shard key.
    """
    if "find" not in command:
        return all(set(stage) == {"$match"} for stage in _stages(command))
    if command.get("limit") or command.get("returnKey"):
        return False
    fields = {name: value for name, value in command.get("projection", {}).items() if not _is_sort_key(value)}
    if not all(isinstance(value, (bool, int, float)) for value in fields.values()):
        return False
    names = [each.name.decode() for each in pattern.fields]
    if any(fields.values()):
        shown = {name for name, value in fields.items() if value} | ({"_id"} if fields.get("_id", True) else set())
        return all(any(_is_part(name, of=each) for each in shown) for name in names)
    left_out = [name for name, value in fields.items() if not value]
    return not any(_is_part(name, of=each) or _is_part(each, of=name) for name in names for each in left_out)


def _stages(command: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    pipeline = command.get("pipeline", ())
    return pipeline if isinstance(pipeline, Sequence) else ()


def _is_sort_key(value: object) -> bool:
    """Whether it is the field that routers add in order to merge sorted results."""
    return value == {"$meta": "sortKey"}


def _is_part(path: str, *, of: str) -> bool:
    return path == of or path.startswith(of + ".")
