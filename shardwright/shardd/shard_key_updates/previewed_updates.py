"""The commands that are executed in place of a previewed update: exactly what the preview showed, or nothing. Pure.

An update is executed on condition that the document is still the one that was previewed. If its result might be another
one the second time (``$rand``, ``$$NOW``, ``$currentDate``), the previewed result is written instead. A document to be
inserted is inserted as previewed, by an upsert whose query matches nothing: mongod records and answers it as an upsert,
and refuses it with DuplicateKey if another writer was faster.
"""

from collections.abc import Mapping
from typing import Any, Final

from shardwright.shardd.shard_key_updates.exact_documents import only_if_unchanged
from shardwright.shardd.shard_key_updates.preview import Preview
from shardwright.wire.rawbson import (
    ARRAY,
    EMPTY_DOCUMENT,
    OBJECT,
    append,
    element,
    encode_document,
    encode_elements,
    find,
    raw_document,
    without,
)

NOTHING: Final = encode_document({"$alwaysFalse": 1})
"""A query that matches no document."""

FINDING_NOTHING: Final[Mapping[str, Any]] = {"q": raw_document(NOTHING), "u": raw_document(EMPTY_DOCUMENT)}
"""An update that does nothing, or, if mongod has executed its statement id before, returns that result."""

NOT_A_DOCUMENT: Final = 40228
"""MongoDB's number for a replacement that is not a document."""

_NOT_OF_ONE: Final = frozenset({b"q", b"upsert", b"upsertSupplied", b"multi"})

_OF_THE_QUERY: Final = frozenset({b"query", b"sort", b"hint", b"update", b"arrayFilters"})


def previewed_statement(statement: bytes, query: bytes, preview: Preview, *, is_collated: bool) -> Mapping[str, Any]:
    """The statement of an ``update`` that does what was previewed.

    Args:
        statement: the client's statement.
        query: its ``q``.
        preview: its preview.
        is_collated: whether a collation other than the simple one is in force.
    """
    if preview.before is not None:
        made = _with_previewed_result(statement, b"u", preview.after)
        narrowed = element(b"q", OBJECT, only_if_unchanged(query, preview.before, is_collated=is_collated))
        return raw_document(append(without(made, _NOT_OF_ONE), narrowed))
    if preview.after is not None:
        return {"q": raw_document(NOTHING), "u": _producing(preview.after), "upsert": True}
    return FINDING_NOTHING


def previewed_find_and_modify(body: bytes, query: bytes, preview: Preview, *, is_collated: bool) -> bytes:
    """The body of the ``findAndModify`` that does what was previewed.

    Args:
        body: the client's command, without the fields that mongod does not know.
        query: its ``query``.
        preview: its preview.
        is_collated: whether a collation other than the simple one is in force.
    """
    if preview.before is not None:
        made = _with_previewed_result(body, b"update", preview.after)
        narrowed = element(b"query", OBJECT, only_if_unchanged(query, preview.before, is_collated=is_collated))
        return append(without(made, {b"query", b"upsert"}), narrowed)
    nothing = element(b"query", OBJECT, NOTHING)
    if preview.after is not None:
        inserting = encode_elements({"update": _producing(preview.after)})
        return append(without(body, _OF_THE_QUERY), nothing + inserting)
    return append(without(body, {b"query", b"upsert"}), nothing)


def find_and_modify_of_nothing(body: bytes) -> bytes:
    """A ``findAndModify`` that does nothing and may fail with `NOT_A_DOCUMENT`, or, if mongod has executed its
    statement id before, returns that result.

    mongod recognises the retry of an upsert only if this is an upsert too. So it has an update that cannot succeed.
    """
    nothing = element(b"query", OBJECT, NOTHING) + encode_elements({"update": [{"$replaceWith": "$nothing"}]})
    return append(without(body, _OF_THE_QUERY), nothing)


def _with_previewed_result(document: bytes, name: bytes, after: bytes | None) -> bytes:
    """A statement or command whose update is certain to have the previewed result.

    Operators have it in any case, except ``$currentDate``. They are kept because they are shorter.
    """
    span = find(document, name)
    if after is None or span is None or not (span[0] == ARRAY or find(document, b"$currentDate", span[2])):
        return document
    return append(without(document, {name, b"arrayFilters"}), encode_elements({name.decode(): _producing(after)}))


def _producing(document: bytes) -> list[Any]:
    """A pipeline that produces a document, whatever its field names, without filling in empty timestamps again."""
    return [{"$replaceWith": {"$literal": raw_document(document)}}]
