"""The shards' and the merger's part of a pipeline over several shards, by MongoDB's rules.

Stages move from the front to the shards until one needs the documents of all shards. Some stages are divided::

    $sort          each shard sorts; the merger merges by $sortKey; stages on single documents stay with the shards
    $group         each shard returns partial states; the merger finishes them. also $bucket, $count, $sortByCount
    $limit         each shard returns no more than $skip + $limit of the merger
    $sample        each shard takes as many; the merger merges them by their random keys
    $geoNear       each shard; the merger merges by distance

Sources that describe a shard get its name added to their documents.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import bson

from shardwright.router.pipelines.needed_fields import projection_of_needed
from shardwright.router.pipelines.split_stages import (
    ONE_PER_GROUP,
    fill_stages,
    merging_accumulators,
    merging_group,
    merging_stage,
    split_window,
)
from shardwright.router.pipelines.stages import (
    INHIBIT_OPTIMIZATION,
    WHOLE_NUMBER_MAX,
    Place,
    place_of,
    sample_size,
    whole_number,
)
from shardwright.router.reads.sort_order import SortOrder
from shardwright.sharding.pipelines.pipeline import UNPACK_BUCKET, Pipeline, Stage, unpacked_fields
from shardwright.wire.rawbson import (
    DOUBLE,
    EMPTY_DOCUMENT,
    INT32,
    INT64,
    OBJECT,
    decode_value,
    encode_document,
    find,
    index,
    is_string,
    spans,
)

_SINGLE_DOCUMENTS: Final = frozenset({Place.MAPS, Place.FILTERS, Place.EACH_SHARD})
_ONE_OR_MORE: Final = frozenset({"$graphLookup", "$lookup", UNPACK_BUCKET})
"""Stages that turn each document into at least one."""

_NOT_DIVIDED: Final = frozenset({"$currentOp", "$planCacheStats"})
"""Sources whose partial or sorted results only a genuine shard returns to a merger."""

_AFTER_A_SORT: Final = frozenset({Place.MAPS, Place.FILTERS})


@dataclass(frozen=True, slots=True)
class SplitPipeline:
    """A split pipeline.

    Attributes:
        merger_part: stages for the merger, which reads the merged results of the shards.
        sort: the order in which the results are merged, as ``{<field>: 1 or -1, …}``; None for any.
        is_partial: whether the shards return partial states.
    """

    shards_part: tuple[Stage, ...]
    merger_part: tuple[Stage, ...]
    sort: Mapping[str, int] | None = None
    is_partial: bool = False

    @classmethod
    def of(cls, pipeline: Pipeline) -> "SplitPipeline":
        """Split a pipeline whose stages are in their final order (`pushdown`)."""
        kept = pipeline.stages[_first_near(pipeline.stages) :]
        stages = tuple(made for stage in kept for made in fill_stages(stage))
        at = 1 if stages and place_of(pipeline.first) is Place.DESCRIBES_SHARD else 0
        at = _end_of(stages, at, _SINGLE_DOCUMENTS)
        head, rest = stages[:at], stages[at:]
        divide = _DIVIDED.get(rest[0].name) if rest and pipeline.first not in _NOT_DIVIDED else None
        split = None if divide is None else divide(head, rest[0], rest[1:])
        return _with_sort_keys(_with_limit(_with_unwind_merged(split or cls(head, rest))))

    def returning_needed_fields(self) -> "SplitPipeline":
        """Return this pipeline with the shards' part reduced to the fields that the merger's part needs."""
        projection = projection_of_needed(self.shards_part, self.merger_part)
        return self if projection is None else replace(self, shards_part=(*self.shards_part, projection))

    @property
    def needs_merge(self) -> bool:
        """Whether the shards return partial states or sort keys."""
        return self.is_partial or self.sort is not None

    @property
    def order(self) -> SortOrder | None:
        """The order of the shards' results; None for any order."""
        return None if self.sort is None else SortOrder(tuple(way < 0 for way in self.sort.values()))


def _first_near(stages: tuple[Stage, ...]) -> int:
    """Return the index of a ``$geoNear`` that would be first in the optimized pipeline; 0 if there is none."""
    for at, stage in enumerate(stages):
        if stage.name == "$geoNear":
            return at
        if not _changes_nothing(stage):
            break
    return 0


def _changes_nothing(stage: Stage) -> bool:
    """Whether mongos's optimizer drops a stage."""
    kind, _, start, end = stage.span
    if stage.name == "$match":
        return kind == OBJECT and end - start == len(EMPTY_DOCUMENT)
    return stage.name == "$skip" and kind in (INT32, INT64, DOUBLE) and stage.specification == 0


def stage_of(raw: bytes) -> Stage:
    """Parse a stage built here, from ``{<name>: <specification>}``."""
    name, span = next(iter(spans(raw)))
    return Stage(name.decode(), raw, span)


def _end_of(stages: tuple[Stage, ...], at: int, places: frozenset[Place]) -> int:
    while at < len(stages) and place_of(stages[at].name) in places:
        at += 1
    return at


def _sorted(head: tuple[Stage, ...], stage: Stage, rest: tuple[Stage, ...]) -> SplitPipeline | None:
    kind, _, start, end = stage.span
    specification = stage.raw[start:end]
    order = SortOrder.parse(specification) if kind == OBJECT else None
    if order is None:
        return None
    names = [name.decode(errors="replace") for name in index(specification)]
    if len(names) != len(order.descending):
        return None
    sort = {name: -1 if descends else 1 for name, descends in zip(names, order.descending, strict=True)}
    if any(kind == OBJECT for _, (kind, *_) in spans(specification)):
        # By metadata, such as {$meta: "textScore"}, for which a shard accepts no projection after the sort.
        return SplitPipeline((*head, stage), rest, sort)
    return _ordered(head, stage, rest, sort)


def _near(head: tuple[Stage, ...], stage: Stage, rest: tuple[Stage, ...]) -> SplitPipeline | None:
    kind, _, start, end = stage.span
    specification = stage.raw[start:end]
    field = index(specification).get(b"distanceField") if kind == OBJECT else None
    name = None if field is None else decode_value(specification, field)
    if not is_string(name) or not _may_be_near(head, specification):
        return None
    return _ordered(head, stage, rest, {name: 1})


def _may_be_near(head: tuple[Stage, ...], specification: bytes) -> bool:
    """Whether the shards may run a ``$geoNear`` after some stages.

    For positions in measurements, mongod inserts a sort after the stage that unpacks the buckets. For positions in
    metadata, it searches the buckets, whose sort keys the unpacking removes. `stages_of_buckets` has already moved the
    latter kind to the front, unless it is to be refused.
    """
    if not head or head[-1].name == UNPACK_BUCKET:
        return True
    fields = next((unpacked_fields(each) for each in head if each.name == UNPACK_BUCKET), None)
    key = find(specification, b"key")
    path = None if key is None else decode_value(specification, key)
    return fields is not None and not (is_string(path) and fields.renamed(path) is not None)


def _ordered(head: tuple[Stage, ...], stage: Stage, rest: tuple[Stage, ...], sort: Mapping[str, int]) -> SplitPipeline:
    end = _end_of(rest, 0, _AFTER_A_SORT)
    return SplitPipeline((*head, stage, *rest[:end]), rest[end:], sort)


def _windowed(head: tuple[Stage, ...], stage: Stage, rest: tuple[Stage, ...]) -> SplitPipeline | None:
    parts = split_window(stage)
    if parts is None:
        return None
    return SplitPipeline((*head, *parts.shards), (*parts.merger, *rest), parts.sort)


def _sampled(head: tuple[Stage, ...], stage: Stage, rest: tuple[Stage, ...]) -> SplitPipeline | None:
    size = sample_size(stage)
    if size is None:
        return None
    limit = stage_of(bson.encode({"$limit": bson.Int64(size)}))
    return SplitPipeline((*head, stage), (limit, *rest), {"$rand": -1})


def _grouped(head: tuple[Stage, ...], stage: Stage, rest: tuple[Stage, ...]) -> SplitPipeline | None:
    kind, _, start, end = stage.span
    merging = merging_group(stage.raw[start:end]) if kind == OBJECT else None
    return None if merging is None else _partial(head, stage, merging, rest)


def _counted(head: tuple[Stage, ...], stage: Stage, rest: tuple[Stage, ...]) -> SplitPipeline | None:
    name = stage.specification
    if not is_string(name) or not name or name == "_id" or name.startswith("$") or "." in name or "\0" in name:
        return None
    counting = {"$group": {"_id": None, name: {"$sum": 1}}}
    shown = {"$project": {name: 1, "_id": 0}}
    return _grouped(head, stage_of(encode_document(counting)), (stage_of(encode_document(shown)), *rest))


def _counted_by(head: tuple[Stage, ...], stage: Stage, rest: tuple[Stage, ...]) -> SplitPipeline | None:
    by = stage.specification
    is_expression = by.startswith("$") if is_string(by) else isinstance(by, dict) and len(by) == 1
    if not is_expression or (isinstance(by, dict) and not next(iter(by)).startswith("$")):
        return None
    counting = stage_of(encode_document({"$group": {"_id": by, "count": {"$sum": 1}}}))
    return _grouped(head, counting, (stage_of(encode_document({"$sort": {"count": -1}})), *rest))


def _bucketed(head: tuple[Stage, ...], stage: Stage, rest: tuple[Stage, ...]) -> SplitPipeline | None:
    """Split at a ``$bucket``, which the shards run unchanged so that their mongods check its bounds."""
    kind, _, start, end = stage.span
    if kind != OBJECT:
        return None
    specification = stage.raw[start:end]
    output = index(specification).get(b"output")
    if output is not None and output[0] != OBJECT:
        return None
    accumulators = merging_accumulators(ONE_PER_GROUP if output is None else specification[output[2] : output[3]])
    if accumulators is None:
        return None
    by_bound = stage_of(encode_document({"$sort": {"_id": 1}}))
    return _partial(head, stage, merging_stage(accumulators), (by_bound, *rest))


def _partial(head: tuple[Stage, ...], stage: Stage, merging: bytes, rest: tuple[Stage, ...]) -> SplitPipeline:
    return SplitPipeline((*head, stage), (stage_of(merging), *rest), is_partial=True)


Dividing = Callable[[tuple[Stage, ...], Stage, tuple[Stage, ...]], SplitPipeline | None]
"""Splits at a stage, given the stages before it, which run on each shard, and the stages after it.

Returns None if mongod will refuse the stage, which then goes to the merger unchanged.
"""

_NOT_MOVED: Final = stage_of(encode_document({INHIBIT_OPTIMIZATION: {}}))

_DIVIDED: Final[Mapping[str, Dividing]] = {
    "$bucket": _bucketed,
    "$count": _counted,
    "$geoNear": _near,
    "$group": _grouped,
    "$sample": _sampled,
    "$setWindowFields": _windowed,
    "$sort": _sorted,
    "$sortByCount": _counted_by,
}


def _with_limit(split: SplitPipeline) -> SplitPipeline:
    """Apply the merger's ``$limit`` on the shards as well."""
    if split.is_partial:
        return split
    skip = 0
    for stage in split.merger_part:
        if place_of(stage.name) is Place.MAPS or stage.name in _ONE_OR_MORE:
            continue
        number = whole_number(stage) if stage.name in ("$skip", "$limit") else None
        if number is None or skip + number > WHOLE_NUMBER_MAX:
            return split
        if stage.name == "$limit":
            limit = stage_of(bson.encode({"$limit": bson.Int64(skip + number)}))
            return replace(split, shards_part=(*split.shards_part, limit))
        skip += number
    return split


def _with_sort_keys(split: SplitPipeline) -> SplitPipeline:
    """Prevent a mongod from moving a sort of measurements that is only by metadata.

    The mongod would sort the buckets, if the stages in between can move as well, and lose the sort keys by unpacking.
    A sort directly after the buckets is not affected: `pushdown` has moved it to the front, and the merger unpacks.
    """
    names = [stage.name for stage in split.shards_part]
    if split.sort is None or UNPACK_BUCKET not in names:
        return split
    fields = unpacked_fields(split.shards_part[names.index(UNPACK_BUCKET)])
    if fields is None or any(fields.renamed(path) is None for path in split.sort):
        return split
    at = len(names) - names[::-1].index("$sort") - 1 if "$sort" in names else len(names)
    return replace(split, shards_part=(*split.shards_part[:at], _NOT_MOVED, *split.shards_part[at:]))


def _with_unwind_merged(split: SplitPipeline) -> SplitPipeline:
    """Move each ``$unwind`` at the end of the shards' part to the merger, so that fewer documents travel.

    It stays if the merger's part starts with a limit, or if the router merges by itself. Concatenation is cheaper than
    a shard that reads, unwinds and returns all documents.
    """
    at = len(split.shards_part)
    while at and split.shards_part[at - 1].name == "$unwind":
        at -= 1
    names = [stage.name for stage in split.merger_part]
    if names[:1] == ["$limit"] or all(name in ("$limit", "$skip") or place_of(name) is Place.MAPS for name in names):
        return split
    unwinding = split.shards_part[at:]
    return replace(split, shards_part=split.shards_part[:at], merger_part=(*unwinding, *split.merger_part))


def with_shard_name(stages: tuple[Stage, ...], shard: str) -> tuple[Stage, ...]:
    """Return the stages for one shard; a source that describes the shard is followed by one that adds its name.

    A genuine shard adds the name itself, at the same place. The ids of operations get the form ``shard:id`` for
    ``killOp``. The address of the shard's client, which is a router, becomes ``client_s``.
    """
    first = stages[0].name if stages else ""
    if place_of(first) is not Place.DESCRIBES_SHARD:
        return stages
    return (stages[0], stage_of(bson.encode(shard_name_stage(first, shard))), *stages[1:])


def shard_name_stage(source: str, shard: str) -> dict[str, Any]:
    """Return the stage that adds a shard's name to the documents of a source that describes it."""
    added: dict[str, Any] = {"shard": {"$literal": shard}}  # a name may begin with a dollar sign
    if source == "$currentOp":
        of_shard = {"$concat": [{"$literal": f"{shard}:"}, {"$toString": "$opid"}]}
        added["opid"] = {"$ifNull": [of_shard, "$$REMOVE"]}
        added |= {"client_s": {"$ifNull": ["$client", "$client_s", "$$REMOVE"]}, "client": "$$REMOVE"}
    return {"$addFields": added}
