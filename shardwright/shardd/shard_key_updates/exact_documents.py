"""Queries for one document by its exact bytes, even if a collation considers others equal. Pure.

Comparisons of strings use the collation in force, while ``$toHashedIndexKey`` hashes their bytes.
"""

from typing import Any

from shardwright.wire.rawbson import append, encode_elements, find, raw_document, wrap_value


def only_with_id(query: bytes, identity: bytes, *, is_collated: bool) -> bytes:
    """``query`` restricted to the document with an ``_id``.

    Args:
        query: the query, raw.
        identity: a raw document ``{_id}``.
        is_collated: whether a collation other than the simple one is in force.
    """
    narrowed = _has_id_of(identity)
    if is_collated:
        narrowed += _is_same_hash("$_id", raw_document(_id_value(identity, b"$literal")))
    return append(query, narrowed)


def only_if_unchanged(query: bytes, before: bytes, *, is_collated: bool) -> bytes:
    """``query`` restricted to one document, as long as it is unchanged.

    Comparing documents uses the collation in force for strings; so if that is not simple, hashes are compared too.
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
