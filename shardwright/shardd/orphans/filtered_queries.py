"""Adding the ownership filter to queries that need it."""

from collections.abc import Mapping
from typing import Any

from shardwright.shardd.orphans.ownership_filter import OwnershipFilter
from shardwright.sharding.targeting.collation import effective, is_simple, uncollated_field
from shardwright.sharding.targeting.exact_key import exact_shard_key
from shardwright.wire.rawbson import (
    EMPTY_DOCUMENT,
    NULL,
    OBJECT,
    append,
    decode_value,
    element,
    find,
    with_value,
    without,
)

Collation = Mapping[str, Any] | None


def is_pinned(query: bytes, ownership: OwnershipFilter, collation: Collation) -> bool:
    """Whether a query matches only documents with one particular shard key, which are not orphans.

    Args:
        query: the query, raw.
        ownership: the filter.
        collation: the collation in force.
    """
    pattern = ownership.pattern
    key = exact_shard_key(query, pattern)
    if key is None or not (is_simple(collation) or uncollated_field(pattern, key) is None):
        return False
    return not ownership.is_orphan(pattern.key_bytes(key))


def filtered_query(query: bytes, ownership: OwnershipFilter, collation: Collation) -> bytes:
    """The query with the filter; unchanged if it is pinned.

    The filter is an additional top-level element, where it does not affect ``$text``, ``$near`` and positional
    operators.
    """
    return query if is_pinned(query, ownership, collation) else append(query, ownership.element(collation))


def with_filtered_query(
    document: bytes, name: bytes, ownership: OwnershipFilter, collation: Collation, *, may_be_null: bool = False
) -> bytes:
    """The same command, statement or stage with the filter in its query, which it may lack.

    Args:
        document: the command, statement or stage, raw.
        name: the field with the query.
        ownership: the filter.
        collation: the collation in force.
        may_be_null: whether mongod accepts null in place of a query.
    """
    span = find(document, name)
    if span is None or (may_be_null and span[0] == NULL):
        query = element(name, OBJECT, filtered_query(EMPTY_DOCUMENT, ownership, collation))
        return append(document if span is None else without(document, {name}), query)
    if span[0] != OBJECT:
        return document  # malformed, which mongod reports
    return with_value(document, span, filtered_query(document[span[2] : span[3]], ownership, collation))


def collation_of(document: bytes, ownership: OwnershipFilter) -> Collation:
    """The collation in force for a command or statement."""
    span = find(document, b"collation")
    own = decode_value(document, span) if span is not None and span[0] == OBJECT else None
    return effective(own, ownership.default_collation)
