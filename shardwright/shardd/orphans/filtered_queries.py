"""Queries that match no orphan: when one needs the filter, and how it gets it."""

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
    """Whether a query matches only documents with one shard key, which are no orphans.

    Args:
        query: raw.
        ownership: what orphans are.
        collation: the one in force.
    """
    pattern = ownership.pattern
    key = exact_shard_key(query, pattern)
    if key is None or not (is_simple(collation) or uncollated_field(pattern, key) is None):
        return False
    return not ownership.is_orphan(pattern.key_bytes(key))


def filtered_query(query: bytes, ownership: OwnershipFilter, collation: Collation) -> bytes:
    """A query that matches the same documents but orphans; the same query if it is pinned.

    The filter is one more element at the top, where it leaves ``$text``, ``$near`` and positional operators alone.
    """
    return query if is_pinned(query, ownership, collation) else append(query, ownership.element(collation))


def with_filtered_query(
    document: bytes, name: bytes, ownership: OwnershipFilter, collation: Collation, *, may_be_null: bool = False
) -> bytes:
    """A command, statement or stage whose query, which it may lack, matches no orphan.

    Args:
        document: raw.
        name: the field of the query.
        ownership: what orphans are.
        collation: the one in force.
        may_be_null: whether mongod takes null for no query.
    """
    span = find(document, name)
    if span is None or (may_be_null and span[0] == NULL):
        query = element(name, OBJECT, filtered_query(EMPTY_DOCUMENT, ownership, collation))
        return append(document if span is None else without(document, {name}), query)
    if span[0] != OBJECT:
        return document  # mongod says what is wrong
    return with_value(document, span, filtered_query(document[span[2] : span[3]], ownership, collation))


def collation_of(document: bytes, ownership: OwnershipFilter) -> Collation:
    """The collation in force in a command or statement."""
    span = find(document, b"collation")
    own = decode_value(document, span) if span is not None and span[0] == OBJECT else None
    return effective(own, ownership.default_collation)
