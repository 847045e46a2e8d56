"""Conditions of a filter on a shard key, and the reasons for its targets, in words. Without I/O."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

from shardwright.console.shell_text import shell_text
from shardwright.sharding.targeting.filters import KeyRanges

Document: TypeAlias = dict[str, Any]

_OPERATORS: Final = {
    "$eq": "= {}",
    "$gt": "> {}",
    "$gte": "≥ {}",
    "$lt": "< {}",
    "$lte": "≤ {}",
    "$in": "in {}",
}


def predicate(path: str, kind: object, filter_: Mapping[str, Any]) -> Document:
    """Return the conditions of a filter on one field of the shard key.

    Args:
        path: the field.
        kind: 1, -1 or ``hashed``.
    """
    conditions = list(_conditions(path, filter_))
    texts = [text for text, _ in conditions]
    return {
        "field": path,
        "isHashed": kind == "hashed",
        "conditions": texts,
        "isFixed": any(is_fixed for _, is_fixed in conditions),
        "isRestricted": bool(texts),
    }


def _conditions(path: str, filter_: Mapping[str, Any]) -> list[tuple[str, bool]]:
    found: list[tuple[str, bool]] = []
    for name, value in filter_.items():
        if name == "$and" and isinstance(value, list):
            for each in value:
                found += _conditions(path, each) if isinstance(each, Mapping) else []
        elif name == path and isinstance(value, Mapping) and any(each.startswith("$") for each in value):
            found += [
                (_OPERATORS[each].format(shell_text(operand)), each == "$eq")
                for each, operand in value.items()
                if each in _OPERATORS
            ]
        elif name == path:
            found.append((f"= {shell_text(value)}", True))
    return found


def reasons(
    predicates: Sequence[Document],
    ranges: KeyRanges | None,
    count: int,
    contacted: Sequence[str],
    shards: Sequence[str],
) -> list[str]:
    """Explain in sentences why a filter targets its shards.

    Args:
        predicates: of each field of the shard key.
        ranges: the key ranges of possible matches; None if the filter is not valid.
        count: number of chunks that can match.
        contacted: the shards that receive the operation.
    """
    first, fixed = predicates[0], [each["field"] for each in predicates if each["isFixed"]]
    found = []
    if ranges is None or ranges.is_everything:
        found.append(
            f"The filter says nothing about {first['field']}, the first field of the shard key, so each chunk may have "
            "matching documents."
            if not first["isRestricted"]
            else f"The condition on {first['field']} does not limit its "
            f"{'hash' if first['isHashed'] else 'values'}, so each chunk may have matching documents."
        )
    elif ranges.point is not None:
        found.append("The filter gives a value for each field of the shard key: exactly one chunk can match.")
    elif len(fixed) == len(predicates):
        found.append("The filter gives a few values for each field of the shard key.")
    elif first["isFixed"]:
        limited = [each["field"] for each in predicates if each["isRestricted"] and not each["isFixed"]]
        also = f" and limits {', '.join(limited)}" if limited else ""
        found.append(f"The filter fixes {', '.join(fixed)}{also}: a range of the shard key can match.")
    else:
        found.append(f"The filter limits {first['field']} to ranges of the shard key.")
    found.append(f"{count:,} {'chunk' if count == 1 else 'chunks'} can match.")
    if len(contacted) == 1:
        found.append(f"All of them are on {contacted[0]}, the only shard that receives the operation.")
    elif len(contacted) < len(shards):
        found.append(f"They are on {len(contacted)} of {len(shards)} shards.")
    else:
        found.append(f"All {len(shards)} shards receive the operation, and the router merges their results.")
    return found


def advice(predicates: Sequence[Document], contacted: Sequence[str]) -> list[str]:
    """Suggest in sentences how a filter would target fewer shards."""
    if len(contacted) <= 1:
        return []
    first = predicates[0]
    if first["isHashed"] and not first["isFixed"]:
        return [
            f"Give a value for {first['field']}: a hashed field is targeted by equality or $in only, ranges are spread "
            "over all shards."
        ]
    if not first["isRestricted"]:
        return [
            f"Add a condition on {first['field']}, best an equality; then only the shards with its range are asked."
        ]
    missing = [each["field"] for each in predicates if not each["isFixed"]]
    if missing:
        return [f"Add an equality on {', '.join(missing)} to narrow the range further."]
    return []
