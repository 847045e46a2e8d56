"""Moving ``$match`` and ``$sort`` towards the front of a pipeline, as mongos does before it targets and splits.

The shards can then drop documents, and sort them with a limit, before they reach the results merger. A condition on the
shard key targets shards wherever in the pipeline it is written.

A condition may pass a stage if, for every document, it holds for the stage's result exactly when it holds for the
document itself. If a stage just renames a field, the condition is renamed too.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Set
from typing import Final

from shardwright.sharding.pipelines.field_paths import (
    WHOLE_DOCUMENT,
    Condition,
    conditions,
    first_component,
    is_exclusion,
    is_flag,
    is_nested,
    is_set,
    match_stage,
    overlap,
    sort_paths,
    source_field,
    unset_paths,
)
from shardwright.sharding.pipelines.pipeline import UNPACK_BUCKET, Pipeline, Stage, unpacked_fields
from shardwright.sharding.targeting.bucket_filters import meta_filter
from shardwright.wire.limits import NESTING_LEVELS_MAX
from shardwright.wire.rawbson import (
    ARRAY,
    OBJECT,
    STRING,
    Span,
    array_of_documents,
    depth_exceeds,
    element,
    from_elements,
    index,
    spans,
)

_ID: Final = b"_id"

_SORT_COMPONENTS_MAX: Final = 32


def before(stage: Stage, condition: Condition) -> Condition | None:
    """Translate a condition after a stage into an equivalent one before it; None if there is none."""
    rule = _RULES.get(stage.name)
    return None if rule is None else rule(stage, condition)


def sort_before(stage: Stage, sort: Stage) -> Stage | None:
    """Translate a ``$sort`` after a stage into an equivalent one before it; None if there is none."""
    kind, _, start, _ = sort.span
    by = set(sort_paths(sort.raw, start)) if kind == OBJECT else set()
    if not by or WHOLE_DOCUMENT in by:
        return None
    if stage.name == UNPACK_BUCKET:
        return _sort_of_buckets(stage, sort)
    joined = _modified_by_join(stage)
    return None if joined is None or overlap(by, {joined}) else sort


def is_valid_sort(sort: Stage) -> bool:
    """Whether mongod certainly accepts a ``$sort``, so that one without effect may be dropped."""
    components = sort.specification
    return (
        isinstance(components, dict)
        and 0 < len(components) <= _SORT_COMPONENTS_MAX
        and all(_is_plain_path(name) and _is_direction(way) for name, way in components.items())
    )


def _is_plain_path(path: str) -> bool:
    names = path.split(".")
    return len(names) <= NESTING_LEVELS_MAX and all(name and not name.startswith("$") for name in names)


def _is_direction(way: object) -> bool:
    if isinstance(way, dict):
        return way in ({"$meta": "randVal"}, {"$meta": "textScore"})
    return not isinstance(way, bool) and isinstance(way, int | float) and math.isfinite(way) and int(way) in (1, -1)


def _sort_of_buckets(unpacking: Stage, sort: Stage) -> Stage | None:
    fields = unpacked_fields(unpacking)
    elements = []
    for name, (kind, _, start, end) in spans(sort.raw, sort.span[2]):
        renamed = None if fields is None else fields.renamed(name.decode(errors="replace"))
        if renamed is None or kind == OBJECT:
            return None
        elements.append(element(renamed.encode(), kind, sort.raw[start:end]))
    return Stage.parse(from_elements(element(b"$sort", OBJECT, from_elements(b"".join(elements)))))


def _modified_by_join(stage: Stage) -> bytes | None:
    """Return the path that a ``$lookup`` or ``$graphLookup`` sets; None for any other stage."""
    if stage.name not in ("$lookup", "$graphLookup") or stage.span[0] != OBJECT:
        return None
    return _string(stage.raw, index(stage.raw, stage.span[2]).get(b"as"))


def _always(_: Stage, condition: Condition) -> Condition:
    return condition


def _unless_modified(condition: Condition, modified: Set[bytes]) -> Condition | None:
    return None if WHOLE_DOCUMENT in condition.paths or overlap(condition.paths, modified) else condition


def _joined(stage: Stage, condition: Condition) -> Condition | None:
    modified = _modified_by_join(stage)
    return None if modified is None else _unless_modified(condition, {modified})


def _unwound(stage: Stage, condition: Condition) -> Condition | None:
    kind, _, start, _ = stage.span
    fields = index(stage.raw, start) if kind == OBJECT else {b"path": stage.span}
    path = _string(stage.raw, fields.get(b"path"))
    if path is None:
        return None
    modified = {path.lstrip(b"$")}
    if b"includeArrayIndex" in fields:
        modified.add(_string(stage.raw, fields[b"includeArrayIndex"]) or WHOLE_DOCUMENT)
    return None if WHOLE_DOCUMENT in modified else _unless_modified(condition, modified)


def _unset(stage: Stage, condition: Condition) -> Condition | None:
    return _unless_modified(condition, set(unset_paths(stage)))


def _added(stage: Stage, condition: Condition) -> Condition | None:
    kind, _, start, _ = stage.span
    if kind != OBJECT:
        return None
    fields = index(stage.raw, start)
    return _unless_modified(condition, set(fields)) or _renamed(condition, stage.raw, fields)


def _projected(stage: Stage, condition: Condition) -> Condition | None:
    kind, _, start, _ = stage.span
    if kind != OBJECT:
        return None
    fields = index(stage.raw, start)
    if is_exclusion(stage.raw, start):
        return _unless_modified(condition, fields.keys())
    kept = {name for name, span in fields.items() if is_flag(span) and is_set(stage.raw, span)}
    if _ID not in fields:
        kept.add(_ID)
    if WHOLE_DOCUMENT not in condition.paths and {first_component(path) for path in condition.paths} <= kept:
        return condition
    return _renamed(condition, stage.raw, fields)


def _renamed(condition: Condition, document: bytes, fields: Mapping[bytes, Span]) -> Condition | None:
    """Rename a condition to the source field that its own field is a copy of."""
    if condition.field is None:
        return None
    field, dot, rest = condition.field.partition(b".")
    source = source_field(document, fields[field]) if field in fields else None
    return None if source is None else condition.renamed(source + dot + rest)


def _grouped(stage: Stage, condition: Condition) -> Condition | None:
    """Translate a condition on a group key, if it gives the same result for all values that group together.

    So it must not test the type, for example. Nor may it test whether the field exists, because groups have null for
    missing.
    """
    kind, _, start, _ = stage.span
    group_id = index(stage.raw, start).get(_ID) if kind == OBJECT else None
    if group_id is None or condition.field is None or not condition.compares:
        return None
    field, dot, rest = condition.field.partition(b".")
    if field != _ID:
        return None
    source = source_field(stage.raw, group_id)
    if source is not None:
        return condition.renamed(source + dot + rest)
    if not is_nested(stage.raw, group_id):
        return None
    inner = Condition(condition.raw, condition.paths, rest)
    return _renamed(inner, stage.raw, index(stage.raw, group_id[2]))


def _united(stage: Stage, condition: Condition) -> Condition | None:
    """Return the condition unchanged; the other collection's documents have to meet it as well."""
    kind, _, start, _ = stage.span
    if kind == STRING:
        return condition
    fields = index(stage.raw, start) if kind == OBJECT else {}
    pipeline = fields.get(b"pipeline")
    is_known = b"coll" in fields and len(fields) == (1 if pipeline is None else 2)
    return condition if is_known and (pipeline is None or pipeline[0] == ARRAY) else None


def _unpacked(stage: Stage, condition: Condition) -> Condition | None:
    """Translate a condition that reads only the metadata, which all measurements of a bucket share."""
    fields = unpacked_fields(stage)
    filter_document = None if fields is None else meta_filter(condition.raw, fields)
    return None if filter_document is None else Condition.of(filter_document)


def _string(document: bytes, span: Span | None) -> bytes | None:
    if span is None or span[0] != STRING:
        return None
    return document[span[2] + 4 : span[3] - 1]


_RULES: Final[Mapping[str, Callable[[Stage, Condition], Condition | None]]] = {
    **dict.fromkeys(("$match", "$sort"), _always),
    **dict.fromkeys(("$addFields", "$set"), _added),
    **dict.fromkeys(("$graphLookup", "$lookup"), _joined),
    "$group": _grouped,
    "$project": _projected,
    "$unionWith": _united,
    "$unset": _unset,
    "$unwind": _unwound,
    UNPACK_BUCKET: _unpacked,
}

_MOVED: Final = frozenset({"$match", "$sort"})
_WINDOW: Final = frozenset({"$limit", "$skip"})


def moved_forward(pipeline: Pipeline) -> Pipeline:
    """Move each ``$match`` and ``$sort`` as early as its results allow; return the same object if none moves."""
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
    """Whether stages are nested deeper than mongod accepts, so that they must not be analysed."""
    return any(depth_exceeds(stage.raw, NESTING_LEVELS_MAX) for stage in stages)


def _add_match(stages: list[Stage], match: Stage) -> None:
    """Add each condition of a ``$match`` after the last stage that it cannot pass."""
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
    """Add a ``$match`` to the pipeline of a ``$unionWith``."""
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
    """Add a ``$sort`` before the joins and the bucket unpacking that precede it and do not affect it.

    It replaces a ``$sort`` directly before it, whose order it would undo, as in MongoDB. Return the position of its
    ``$skip`` and ``$limit``; 0 if it did not move.
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
