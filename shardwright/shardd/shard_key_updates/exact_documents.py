"""Queries for one document by its very bytes, whatever a collation takes for the same. Pure.

A comparison of strings is that of the collation in force; ``$toHashedIndexKey`` hashes their bytes.
"""

from typing import Any

from shardwright.wire.rawbson import append, encode_elements, find, raw_document, wrap_value


def only_this_one(query: bytes, identity: bytes, *, is_collated: bool) -> bytes:
    """``query`` narrowed to the document of an ``_id``.

    Args:
        query: raw.
        identity: a raw document ``{_id}``.
        is_collated: another collation than the simple one is in force.
    """
    narrowed = _has_id_of(identity)
    if is_collated:
        narrowed += _is_same_hash("$_id", raw_document(_id_value(identity, b"$literal")))
    return append(query, narrowed)


def only_as_it_was(query: bytes, before: bytes, *, is_collated: bool) -> bytes:
    """``query`` narrowed to one document, as long as it is unchanged.

    A comparison of documents takes strings as the collation in force does; a hash is that of their bytes.
    """
    literal = {"$literal": raw_document(before)}
    unchanged = encode_elements({"$expr": {"$eq": ["$$ROOT", literal]}})
    return append(query, _has_id_of(before) + unchanged + (_is_same_hash("$$ROOT", literal) if is_collated else b""))


def _has_id_of(document: bytes) -> bytes:
    return encode_elements({"$and": [{"_id": raw_document(_id_value(document, b"$eq"))}]})


def _id_value(document: bytes, name: bytes) -> bytes:
    """``{<name>: <_id of the document>}``."""
    span = find(document, b"_id")
    assert span is not None
    return wrap_value(span[0], document[span[2] : span[3]], name)


def _is_same_hash(value: str, literal: Any) -> bytes:  # noqa: ANN401 - an expression
    return encode_elements({"$expr": {"$eq": [{"$toHashedIndexKey": value}, {"$toHashedIndexKey": literal}]}})
