"""Pipelines that count: the shards count, and the router adds up.

Drivers send such a pipeline for ``count_documents``::

    [stages on single documents]* [$skip]? [$limit]? [$count, or a $group that counts all documents]
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import bson

from shardwright.router.pipelines.numbers import WHOLE_NUMBER_MAX, whole_number
from shardwright.router.pipelines.stages import Place, place_of
from shardwright.router.reads.pipeline import Pipeline, Stage
from shardwright.wire.rawbson import is_string

_ON_SINGLE_DOCUMENTS = frozenset({Place.MAPS, Place.FILTERS, Place.EACH_SHARD})


@dataclass(frozen=True, slots=True)
class Counting:
    """The parts of such a pipeline.

    Attributes:
        shard_stages: raw stages for each shard.
        skip: documents not to count.
        limit: the largest result, 0 for no bound.
        field: name of the field with the count.
        prefix: the fields before it in the result.
    """

    shard_stages: tuple[bytes, ...]
    skip: int
    limit: int
    field: str
    prefix: Mapping[str, Any]

    @classmethod
    def of(cls, pipeline: Pipeline) -> "Counting | None":
        """The parts of a pipeline of this form, None for any other."""
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
        """The single result, given the shards' counts; None if nothing matched."""
        total = max(sum(counts) - self.skip, 0)
        if self.limit:
            total = min(total, self.limit)
        return {**self.prefix, self.field: total} if total else None


def _counted(stage: Stage) -> tuple[str, Mapping[str, Any]] | None:
    """The field with the count, and the fields before it, in the result of a stage that counts all documents.

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
