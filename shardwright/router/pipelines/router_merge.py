"""Parts of a pipeline that the router merges without a mongod.

It concatenates or merges sorted results, then skips and limits; or it adds up the counts of the shards. Drivers send a
pipeline that counts for ``count_documents``::

    [stages on single documents]* [$skip]? [$limit]? [$count, or a $group that counts all documents]
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import bson

from shardwright.router.pipelines.split import SplitPipeline
from shardwright.router.pipelines.stages import WHOLE_NUMBER_MAX, Place, place_of, whole_number
from shardwright.router.reads.sort_order import SortOrder
from shardwright.sharding.pipelines.pipeline import Pipeline, Stage
from shardwright.wire.rawbson import is_string

_WITH_METADATA: Final = (b"$geoNear\0", b"$text\0", b"$near\0", b"$nearSphere\0", b"$sample\0")
"""Operators that make shards add metadata to each document for the merger. Only a mongod as the merger removes it."""

_PROJECTIONS: Final = frozenset({"$addFields", "$project", "$set", "$unset"})
_OPERATOR: Final = re.compile(rb"[^\0]\$\w+\0")
"""The name of a stage or an operator. A string value does not match, because its length precedes it and ends with a
zero byte."""


@dataclass(frozen=True, slots=True)
class RouterMerge:
    """The merge of the shards' results by the router.

    Attributes:
        stages: for each shard: its part, and the merger's projections, which may as well precede skip and limit.
        order: the order of the merge, None for any order.
        limit: total number of results to return, 0 for no bound.
    """

    stages: tuple[Stage, ...]
    order: SortOrder | None = None
    skip: int = 0
    limit: int = 0

    @classmethod
    def of(cls, split: SplitPipeline) -> "RouterMerge | None":
        """Return the router's merge; None if a shard must merge."""
        if split.is_partial or (split.sort is not None and _has_metadata(split)):
            return None
        stages, skip, limit = list(split.shards_part), 0, 0
        for stage in split.merger_part:
            if _is_plain_projection(stage):
                stages.append(stage)
                continue
            number = whole_number(stage) if stage.name in ("$skip", "$limit") else None
            if number is None or (limit and stage.name == "$skip" and number >= limit):
                return None
            if stage.name == "$limit":
                limit = min(number, limit or number)
            else:
                skip, limit = skip + number, max(limit - number, 0)
        return cls(tuple(stages), split.order, skip, limit)


def _has_metadata(split: SplitPipeline) -> bool:
    return any(name in stage.raw for stage in split.shards_part for name in _WITH_METADATA)


def _is_plain_projection(stage: Stage) -> bool:
    """Whether a stage projects fields without any computation, which could fail for documents that are skipped."""
    return stage.name in _PROJECTIONS and len(_OPERATOR.findall(stage.raw)) == 1


_ON_SINGLE_DOCUMENTS = frozenset({Place.MAPS, Place.FILTERS, Place.EACH_SHARD})


@dataclass(frozen=True, slots=True)
class Counting:
    """The parts of a counting pipeline.

    Attributes:
        skip: documents not to count.
        limit: the largest result, 0 for no bound.
        prefix: the fields before the count in the result.
    """

    shard_stages: tuple[bytes, ...]
    skip: int
    limit: int
    field: str
    prefix: Mapping[str, Any]

    @classmethod
    def of(cls, pipeline: Pipeline) -> "Counting | None":
        """Recognize a counting pipeline; return None for any other."""
        stages = list(pipeline.stages)
        counted = _counted(stages.pop()) if stages and stages[-1].name in ("$count", "$group") else None
        if counted is None:
            return None
        head: list[bytes] = []
        while stages and place_of(stages[0].name) in _ON_SINGLE_DOCUMENTS:
            head.append(stages.pop(0).raw)
        skip = whole_number(stages.pop(0)) if stages and stages[0].name == "$skip" else 0
        limit = whole_number(stages.pop(0)) if stages and stages[0].name == "$limit" else 0
        if stages or skip is None or limit is None or skip + limit > WHOLE_NUMBER_MAX:
            return None
        if limit:
            head.append(bson.encode({"$limit": bson.Int64(skip + limit)}))
        return cls((*head, pipeline.stages[-1].raw), skip, limit, *counted)

    def total(self, counts: list[int]) -> dict[str, Any] | None:
        """Return the single result, given the shards' counts; None if nothing matched."""
        total = max(sum(counts) - self.skip, 0)
        if self.limit:
            total = min(total, self.limit)
        return {**self.prefix, self.field: total} if total else None


def _counted(stage: Stage) -> tuple[str, Mapping[str, Any]] | None:
    """Return the count field, and the fields before it, in the result of a stage that counts all documents.

    That is ``{$count: <field>}`` or ``{$group: {_id: <constant>, <field>: {$sum: 1}}}`` with any constant.
    """
    specification = stage.specification
    if stage.name == "$count":
        return (specification, {}) if is_string(specification) else None
    if not isinstance(specification, dict) or list(specification)[:1] != ["_id"]:
        return None
    accumulated = list(specification.items())[1:]
    group_id = specification["_id"]
    if len(accumulated) != 1 or not (group_id is None or type(group_id) in (int, float)):
        return None
    name, accumulator = accumulated[0]
    if accumulator == {"$count": {}} or (accumulator == {"$sum": 1} and type(accumulator["$sum"]) is int):
        return name, {"_id": group_id}
    return None
