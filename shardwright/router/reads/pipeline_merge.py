"""Pipelines that several shards can run and whose results the router can merge itself.

These are the ones that look like a ``find`` or a count::

    [stages on single documents]* [$sort]? [$skip]? [$limit]? [stages that turn one document into one]*
    [stages on single documents]* [$skip]? [$limit]? [$count, or a $group that counts all documents]

Results of the first form are merged like those of ``find``: by ``$sortKey``, then skip and limit. For the second form,
which drivers send for ``count_documents``, the shards' counts are added up.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import bson

from shardwright.router.reads.pipeline import Pipeline, Stage
from shardwright.router.reads.sort_order import SortOrder
from shardwright.wire.rawbson import OBJECT

PER_SHARD_SOURCES: Final = frozenset({"$collStats", "$indexStats", "$planCacheStats", "$currentOp"})
"""First stages that describe a shard: their documents name it in ``shard``."""

_ONE_TO_ONE: Final = frozenset({"$project", "$addFields", "$set", "$unset", "$replaceRoot", "$replaceWith"})
_SINGLE_DOCUMENT: Final = _ONE_TO_ONE | {"$match", "$redact", "$unwind"}
_WHOLE_NUMBER_MAX: Final = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class MergeablePipeline:
    """The parts of such a pipeline.

    Attributes:
        shard_stages: raw stages for each shard.
        order: the order of the results, None for none.
        skip: results to skip after merging.
        limit: results to return in all, 0 for no bound.
        count_field: name of the field with the count, None if the pipeline does not count.
        count_prefix: the fields before it in the result.
    """

    shard_stages: tuple[bytes, ...]
    order: SortOrder | None = None
    skip: int = 0
    limit: int = 0
    count_field: str | None = None
    count_prefix: Mapping[str, Any] = field(default_factory=dict)

    @property
    def merger_stages(self) -> list[dict[str, Any]]:
        """The router's part as stages, for ``explain``."""
        if self.count_field is not None:
            return [{"$group": {"_id": None, self.count_field: {"$sum": f"${self.count_field}"}}}]
        stages: list[dict[str, Any]] = []
        if self.order is not None:
            stages.append({"$sort": {"$sortKey": 1}})
        if self.skip:
            stages.append({"$skip": self.skip})
        if self.limit:
            stages.append({"$limit": self.limit})
        return stages

    @classmethod
    def of(cls, pipeline: Pipeline) -> "MergeablePipeline | None":
        """The parts of a pipeline of one of these forms, None for any other."""
        stages = list(pipeline.stages)
        head = [stages.pop(0)] if pipeline.first in PER_SHARD_SOURCES else []
        head += _take_while(stages, _SINGLE_DOCUMENT)
        order: SortOrder | None = None
        if stages and stages[0].name == "$sort":
            order = _sort_order(stages[0])
            if order is None:
                return None
            head.append(stages.pop(0))
        skip = _whole_number(stages.pop(0)) if stages and stages[0].name == "$skip" else 0
        limit = _whole_number(stages.pop(0)) if stages and stages[0].name == "$limit" else 0
        if skip is None or limit is None or skip + limit > _WHOLE_NUMBER_MAX:
            return None
        shard_stages = [stage.raw for stage in head]
        if limit:
            shard_stages.append(bson.encode({"$limit": bson.Int64(skip + limit)}))
        if len(stages) == 1 and order is None:
            counting = _counting(stages[0])
            if counting is not None:
                return cls((*shard_stages, stages[0].raw), None, skip, limit, *counting)
        tail = _take_while(stages, _ONE_TO_ONE)
        if stages:
            return None
        return cls((*shard_stages, *(stage.raw for stage in tail)), order, skip, limit)

    def total(self, counts: list[int]) -> dict[str, Any] | None:
        """The single result, given the shards' counts; None if nothing matched."""
        assert self.count_field is not None
        total = max(sum(counts) - self.skip, 0)
        if self.limit:
            total = min(total, self.limit)
        return {**self.count_prefix, self.count_field: total} if total else None


def _take_while(stages: list[Stage], names: frozenset[str]) -> list[Stage]:
    taken: list[Stage] = []
    while stages and stages[0].name in names:
        taken.append(stages.pop(0))
    return taken


def _sort_order(stage: Stage) -> SortOrder | None:
    kind, _, start, end = stage.span
    return SortOrder.parse(stage.raw[start:end]) if kind == OBJECT else None


def _whole_number(stage: Stage) -> int | None:
    """The argument of ``$skip`` or ``$limit``; None if it is invalid, which is left for mongod to report."""
    value = stage.specification
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value // 1:
        return None
    if value < (0 if stage.name == "$skip" else 1):
        return None
    return int(value)


def _counting(stage: Stage) -> tuple[str, Mapping[str, Any]] | None:
    """The field with the count, and the fields before it, in the result of a stage that counts all documents.

    That is ``{$count: <field>}`` or ``{$group: {_id: <constant>, <field>: {$sum: 1}}}`` with any constant.
    """
    specification = stage.specification
    if stage.name == "$count" and isinstance(specification, str):
        return specification, {}
    if stage.name != "$group" or not isinstance(specification, dict) or list(specification)[:1] != ["_id"]:
        return None
    accumulated = list(specification.items())[1:]
    group_id = specification["_id"]
    if len(accumulated) != 1 or not (group_id is None or type(group_id) in (int, float)):
        return None
    name, accumulator = accumulated[0]
    if accumulator == {"$count": {}} or (accumulator == {"$sum": 1} and type(accumulator["$sum"]) is int):
        return name, {"_id": group_id}
    return None
