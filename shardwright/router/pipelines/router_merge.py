"""Halves whose merging the router does itself: a concatenation or a sorted merge, then skip and limit."""

import re
from dataclasses import dataclass
from typing import Final

from shardwright.router.pipelines.numbers import whole_number
from shardwright.router.pipelines.split import SplitPipeline
from shardwright.router.reads.pipeline import Stage
from shardwright.router.reads.sort_order import SortOrder

_WITH_METADATA: Final = (b"$geoNear\0", b"$text\0", b"$near\0", b"$nearSphere\0", b"$sample\0")
"""What makes shards add metadata to each document for the merger; mongod as the merger removes it."""

_PROJECTIONS: Final = frozenset({"$addFields", "$project", "$set", "$unset"})
_OPERATOR: Final = re.compile(rb"[^\0]\$\w+\0")
"""The name of a stage or an operator; a string is preceded by its length, which ends with a zero byte."""


@dataclass(frozen=True, slots=True)
class RouterMerge:
    """What the router does with the results of the shards.

    Attributes:
        stages: for each shard: its part, and the merger's projections, which can as well precede skip and limit.
        order: how to merge the results, None for any order.
        skip: results to skip.
        limit: results to return in all, 0 for no bound.
    """

    stages: tuple[Stage, ...]
    order: SortOrder | None = None
    skip: int = 0
    limit: int = 0

    @classmethod
    def of(cls, split: SplitPipeline) -> "RouterMerge | None":
        """How the router merges; None if a shard has to."""
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
    """Whether a stage projects fields without computing anything, which could fail for documents that are skipped."""
    return stage.name in _PROJECTIONS and len(_OPERATOR.findall(stage.raw)) == 1
