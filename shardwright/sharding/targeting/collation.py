"""Conditions under which strings may be compared as bytes, and two collations are the same.

Chunk bounds are in simple (binary) order. So a key with a possible string does not determine the place of a match,
unless the effective collation of the operation is the simple one.
"""

from collections.abc import Mapping
from typing import Any, Final

from shardwright.sharding.shard_key import ShardKeyPattern
from shardwright.sharding.targeting.values import is_collatable
from shardwright.wire import rawbson

ICU_DEFAULTS: Final[Mapping[str, Any]] = {
    "caseLevel": False,
    "caseFirst": "off",
    "strength": 3,
    "numericOrdering": False,
    "alternate": "non-ignorable",
    "maxVariable": "punct",
    "normalization": False,
    "backwards": False,
}
"""Defaults of mongod for fields that a collation with a locale omits."""


def is_simple(collation: Mapping[str, Any] | None) -> bool:
    """Whether a collation, or the lack of one, compares strings as bytes."""
    return not collation or collation.get("locale") == "simple"


def effective(
    operation: Mapping[str, Any] | None, collection_default: Mapping[str, Any] | None
) -> Mapping[str, Any] | None:
    """Return the collation of an operation: its own if it names one, ``simple`` included, or else the collection's."""
    return operation or collection_default


def is_collection_default(operation: Mapping[str, Any] | None, collection_default: Mapping[str, Any] | None) -> bool:
    """Whether an operation collates like the collection, so that the ``_id`` index and its uniqueness apply."""
    return not operation or _spelled_out(operation) == _spelled_out(collection_default)


def uncollated_field(pattern: ShardKeyPattern, key: bytes) -> str | None:
    """Return the first field of a shard key document that is unusable under a non-simple collation, if there is one.

    A hashed field never can be: its value may be the hash of a string.
    """
    for each, (name, span) in zip(pattern.fields, rawbson.spans(key), strict=True):
        if each.hashed or is_collatable(span[0]):
            return name.decode(errors="replace")
    return None


def _spelled_out(collation: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """Fill in the defaults that a command omits and a catalog entry has; drop the ICU's version."""
    if is_simple(collation):
        return {"locale": "simple"}
    return {**ICU_DEFAULTS, **{key: value for key, value in (collation or {}).items() if key != "version"}}
