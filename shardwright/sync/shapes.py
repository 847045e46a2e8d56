"""Comparison of collections without their documents: kinds, options, indexes, shard keys, zones. Pure."""

from collections.abc import Mapping
from typing import Any, Final

from bson import encode

from shardwright.sync.plan import Collection, index_at_target

DEFAULTS: Final[Mapping[str, Any]] = {
    "validator": {},
    "validationLevel": "strict",
    "validationAction": "error",
    "changeStreamPreAndPostImages": {"enabled": False},
}
"""The values of missing options."""

_NOT_COMPARED: Final = frozenset({"uuid", "autoIndexId"})


def problems(
    ours: Collection | None, wanted: Collection | None, theirs: Collection | None, *, has_more: bool = False
) -> list[str]:
    """Describe the differences of a collection.

    Args:
        wanted: its planned form at the target, with shard key and zones.
        has_more: whether the target may have indexes and options of its own, because it had the collection before.
    """
    if ours is None or wanted is None:
        return [] if theirs is None else ["it is only at the target"]
    if theirs is None:
        return ["it is not at the target"]
    if wanted.kind != theirs.kind:
        return [f"it is a {theirs.kind} at the target, a {wanted.kind} at the source"]
    found = [] if has_more else _of_options(wanted.options, theirs.options)
    found += _of_indexes(wanted, theirs, has_more=has_more)
    if dict(wanted.key or {}) != dict(theirs.key or {}) or list(wanted.key or ()) != list(theirs.key or ()):
        found.append(f"the shard key is {_text(theirs.key)} at the target instead of {_text(wanted.key)}")
    elif wanted.key is not None and wanted.is_unique != theirs.is_unique:
        found.append("the shard key is unique on one side only")
    if wanted.zones is not None and _zones(wanted) != _zones(theirs):
        found.append("the zones are different at the target")
    return found


def _of_options(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> list[str]:
    one, other = [
        {name: value for name, value in options.items() if name not in _NOT_COMPARED and DEFAULTS.get(name) != value}
        for options in (ours, theirs)
    ]
    return [
        f"the option {name} is different at the target"
        for name in sorted(one.keys() | other.keys())
        if _bytes(one.get(name)) != _bytes(other.get(name))
    ]


def _of_indexes(wanted: Collection, theirs: Collection, *, has_more: bool) -> list[str]:
    ours, there = [
        {str(each["name"]): index_at_target(each, keeps_expiry=False) for each in collection.indexes}
        for collection in (wanted, theirs)
    ]
    found = [
        f"the index {name} is missing or different at the target"
        for name, index in ours.items()
        if name not in there or there[name] != index or list(there[name]["key"]) != list(index["key"])
    ]
    if not has_more:
        found += [
            f"the index {name} is only at the target"
            for name, index in there.items()
            if name not in ours and index["key"] != theirs.key
        ]
    return found


def _zones(collection: Collection) -> list[bytes]:
    return sorted(encode({"": [each["min"], each["max"], each["tag"]]}) for each in collection.zones or ())


def _bytes(value: object) -> bytes:
    """Encode a value, so that the order of its fields and the types of its numbers count."""
    return encode({"": value})


def _text(key: Mapping[str, Any] | None) -> str:
    return "none" if key is None else str(dict(key))
