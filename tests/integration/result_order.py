"""Order of results: the compared pipelines for which it is definite."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

_ORDERING: Final = frozenset({"$sort", "$geoNear", "$documents", "$bucket", "$bucketAuto", "$count", "$facet"})
"""Stages that order their results, or have a single one. Each `$sort` of these tests ends in a unique field."""

_PASSING: Final = frozenset(
    {
        "$addFields",
        "$graphLookup",
        "$limit",
        "$lookup",
        "$match",
        "$project",
        "$redact",
        "$replaceRoot",
        "$replaceWith",
        "$set",
        "$skip",
        "$unset",
        "$unwind",
    }
)
"""Stages whose results have the order of their input."""

_SORTING_PARTITIONS: Final = frozenset({"$densify", "$fill", "$setWindowFields"})
_PARTITIONS: Final = frozenset({"partitionBy", "partitionByFields"})


def is_in_order(pipeline: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the results come in an order that the pipeline decides."""
    in_order = False
    for stage in pipeline:
        [(name, specification)] = stage.items()
        if name in _ORDERING:
            in_order = True
        elif name in _SORTING_PARTITIONS:
            in_order = _orders(name, specification, in_order=in_order)
        elif name not in _PASSING:
            in_order = False
    return in_order


def has_ordered_fields(pipeline: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the fields of the results come in an order that the pipeline decides."""
    return not any(_mixes_fields(name, specification) for stage in pipeline for name, specification in stage.items())


def _mixes_fields(name: str, specification: Any) -> bool:  # noqa: ANN401 - each stage has its own
    """For a stage whose order depends on which engine of mongod runs it, or on the seed of a hash table."""
    return name == "$lookup" or (name in ("$fill", "$setWindowFields") and len(specification["output"]) > 1)


def _orders(name: str, specification: Mapping[str, Any], *, in_order: bool) -> bool:
    """For a stage that sorts each partition: mongod sorts everything if there is only one."""
    if name == "$fill" and "sortBy" not in specification:
        return in_order  # it fills by value only, as $addFields
    if _PARTITIONS.intersection(specification):
        return False
    return name == "$densify" or "sortBy" in specification
