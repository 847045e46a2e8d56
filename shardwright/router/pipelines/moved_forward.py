"""Moving ``$match`` and ``$sort`` towards the front of a pipeline, as mongos does before it targets and splits.

So the shards drop documents, and sort them with a limit, that the merger would otherwise receive; and a condition on
the shard key targets shards wherever in the pipeline it is written.
"""

from collections import defaultdict
from collections.abc import Iterable
from typing import Final

from shardwright.router.pipelines.match_paths import Condition, conditions, match_stage
from shardwright.router.pipelines.passing import before, is_valid_sort, sort_before
from shardwright.router.reads.pipeline import Pipeline, Stage
from shardwright.router.reads.reads_of_buckets import UNPACK_BUCKET
from shardwright.wire.limits import NESTING_LEVELS_MAX
from shardwright.wire.rawbson import (
    ARRAY,
    OBJECT,
    STRING,
    array_of_documents,
    depth_exceeds,
    element,
    from_elements,
    index,
    spans,
)

_MOVED: Final = frozenset({"$match", "$sort"})
_WINDOW: Final = frozenset({"$limit", "$skip"})


def moved_forward(pipeline: Pipeline) -> Pipeline:
    """The pipeline with each ``$match`` and ``$sort`` as early as its results allow; the same object if none moves."""
    if _MOVED.isdisjoint(pipeline.names[1:]) or is_too_deep(pipeline.stages):
        return pipeline
    moved: list[Stage] = []
    window_at = 0
    for stage in pipeline.stages:
        if stage.name == "$match":
            _add_match(moved, stage)
            window_at = 0
        elif stage.name == "$sort":
            window_at = _add_sort(moved, stage)
        elif stage.name in _WINDOW and window_at:
            moved.insert(window_at, stage)
            window_at += 1
        else:
            moved.append(stage)
            window_at = 0
    stages = tuple(moved)
    return pipeline if stages == pipeline.stages else Pipeline(stages)


def is_too_deep(stages: Iterable[Stage]) -> bool:
    """Whether stages are nested deeper than mongod accepts, and not to be analysed."""
    return any(depth_exceeds(stage.raw, NESTING_LEVELS_MAX) for stage in stages)


def _add_match(stages: list[Stage], match: Stage) -> None:
    """Add a ``$match``, or rather each of its conditions, behind the last stage that it cannot pass."""
    arrived: dict[int, list[Condition]] = defaultdict(list)
    united: dict[int, list[Condition]] = defaultdict(list)
    for condition in conditions(match) or ():
        at, moved = len(stages), condition
        for number in range(len(stages) - 1, -1, -1):
            passed = before(stages[number], moved)
            if passed is None:
                break
            if stages[number].name == "$unionWith":
                united[number].append(moved)
            moved = passed
            if stages[number].name != "$match":
                at = number
        arrived[at].append(moved)
    if set(arrived) <= {len(stages)}:
        stages.append(match)
        return
    for number, parts in united.items():
        stages[number] = _with_match(stages[number], match_stage(parts))
    for at in sorted(arrived, reverse=True):
        stages.insert(at, match_stage(arrived[at]))


def _with_match(union: Stage, match: Stage) -> Stage:
    """A ``$unionWith`` whose other documents have to pass a ``$match``."""
    kind, _, start, end = union.span
    if kind == STRING:
        collection, pipeline = element(b"coll", STRING, union.raw[start:end]), []
    else:
        fields = index(union.raw, start)
        _, at, _, until = fields[b"coll"]
        collection = union.raw[at:until]
        given = fields.get(b"pipeline")
        pipeline = [] if given is None else [union.raw[each[2] : each[3]] for _, each in spans(union.raw, given[2])]
    specification = collection + element(b"pipeline", ARRAY, array_of_documents([*pipeline, match.raw]))
    return Stage.parse(from_elements(element(b"$unionWith", OBJECT, from_elements(specification))))


def _add_sort(stages: list[Stage], sort: Stage) -> int:
    """Add a ``$sort`` in front of the joins that it follows and does not depend on, and of what unpacks its buckets.

    It replaces a ``$sort`` that it would directly follow, whose order it would undo, as in MongoDB.

    Returns:
        Where the ``$skip`` and ``$limit`` behind it belong; 0 if it did not move.
    """
    at = len(stages)
    while at and (moved := sort_before(stages[at - 1], sort)) is not None:
        sort, at = moved, at - 1
    is_moved = at < len(stages)
    if at and stages[at - 1].name == "$sort" and is_valid_sort(stages[at - 1]):
        at -= 1
        del stages[at]
    stages.insert(at, sort)
    if not is_moved:
        return 0
    return at + 2 if stages[at + 1].name == UNPACK_BUCKET else at + 1  # they count measurements
