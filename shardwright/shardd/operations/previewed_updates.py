"""The preview of an update, and the commands that replace it by exactly the previewed effect, or none. Pure.

Such a command selects its document by its exact bytes, even if a collation considers others equal. Comparisons of
strings use the collation in force, while ``$toHashedIndexKey`` hashes their bytes.

An update is executed on condition that the document is still the previewed one. If a second execution might have
another result (``$rand``, ``$$NOW``, ``$currentDate``), the previewed result is written instead. A document is inserted
as previewed by an upsert whose query matches nothing. mongod then records and answers it as an upsert, and refuses it
with DuplicateKey if another writer was faster.

The DuplicateKey may also be permanent. Then the next preview fails with it or, after the last attempt, it is the
result.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import missing_field, wrong_type
from shardwright.wire.rawbson import (
    ARRAY,
    EMPTY_DOCUMENT,
    OBJECT,
    Span,
    append,
    array_documents,
    decode_value,
    element,
    encode_document,
    encode_elements,
    find,
    index,
    raw_document,
    without,
    wrap_value,
)
from shardwright.wire.request import Request


@dataclass(frozen=True, slots=True)
class Preview:
    """One document before and after an update. Without ``before`` it would be inserted; without both, none matched."""

    before: bytes | None
    after: bytes | None


class UpdateStatement:
    """A statement of an ``update``; CommandError with 40414 or TypeMismatch without a valid ``q``."""

    def __init__(self, raw: bytes) -> None:
        self.raw = raw
        self.fields = index(raw)
        self.query = _query(raw, self.fields)

    @property
    def is_multi(self) -> bool:
        """Whether it updates all documents that match."""
        return bool(self._value(b"multi"))

    @property
    def supplied(self) -> bytes | None:
        """The document to insert if none matches, instead of the pipeline's result; None if there is none."""
        constants = self.fields.get(b"c")
        if constants is None or not (self._value(b"upsert") and self._value(b"upsertSupplied")):
            return None
        new = find(self.raw, b"new", constants[2])
        return None if new is None or new[0] != OBJECT else self.raw[new[2] : new[3]]

    def modification(self, request: Request) -> dict[str, Any]:
        """Return the arguments of the ``findAndModify`` with the same effect, except for inserting `supplied`."""
        modification = {"query": raw_document(self.query), "update": raw_update(self.raw, self.fields[b"u"])}
        for name in (b"upsert", b"collation", b"arrayFilters", b"hint"):
            if name in self.fields and not (name == b"upsert" and self.supplied is not None):
                modification[name.decode()] = self._value(name)
        if b"bypassDocumentValidation" in request.fields:
            modification["bypassDocumentValidation"] = request.get(b"bypassDocumentValidation")
        variables = {**(request.get(b"let") or {})}
        for variable, value in (self._value(b"c") or {}).items():
            variables[variable] = {"$literal": value}
        if variables:
            modification["let"] = variables
        return modification

    def _value(self, name: bytes) -> Any:  # noqa: ANN401 - a BSON value
        span = self.fields.get(name)
        return None if span is None else decode_value(self.raw, span)


def raw_update(document: bytes, span: Span) -> Any:  # noqa: ANN401 - a document or a list of them
    """Return operators or a replacement as a raw document, a pipeline as a list of raw stages."""
    if span[0] == ARRAY:
        return [raw_document(stage) for stage in array_documents(document, span)]
    return raw_document(document[span[2] : span[3]])


def _query(document: bytes, fields: Mapping[bytes, Span]) -> bytes:
    span = fields.get(b"q")
    if span is None:
        raise missing_field("update.updates.q")
    if span[0] != OBJECT:
        raise wrong_type("update.updates.q", span[0], "object")
    return document[span[2] : span[3]]


def only_with_id(query: bytes, identity: bytes, *, is_collated: bool) -> bytes:
    """Restrict ``query`` to the document with an ``_id``.

    Args:
        identity: a raw document ``{_id}``.
        is_collated: whether a collation other than the simple one is in force.
    """
    narrowed = _has_id_of(identity)
    if is_collated:
        narrowed += _is_same_hash("$_id", raw_document(_id_value(identity, b"$literal")))
    return append(query, narrowed)


def only_if_unchanged(query: bytes, before: bytes, *, is_collated: bool) -> bytes:
    """Restrict ``query`` to one document, as long as it is unchanged.

    Comparing documents uses the collation in force for strings. If that is not simple, hashes are compared too.
    """
    literal = {"$literal": raw_document(before)}
    unchanged = encode_elements({"$expr": {"$eq": ["$$ROOT", literal]}})
    return append(query, _has_id_of(before) + unchanged + (_is_same_hash("$$ROOT", literal) if is_collated else b""))


def _has_id_of(document: bytes) -> bytes:
    return encode_elements({"$and": [{"_id": raw_document(_id_value(document, b"$eq"))}]})


def _id_value(document: bytes, name: bytes) -> bytes:
    """Return ``{<name>: <_id of the document>}``."""
    span = find(document, b"_id")
    assert span is not None
    return wrap_value(span[0], document[span[2] : span[3]], name)


def _is_same_hash(value: str, literal: Any) -> bytes:  # noqa: ANN401 - an expression
    return encode_elements({"$expr": {"$eq": [{"$toHashedIndexKey": value}, {"$toHashedIndexKey": literal}]}})


NOTHING: Final = encode_document({"$alwaysFalse": 1})
"""A query that matches no document."""

FINDING_NOTHING: Final[Mapping[str, Any]] = {"q": raw_document(NOTHING), "u": raw_document(EMPTY_DOCUMENT)}
"""An update without effect; if mongod has executed its statement id before, it returns that result."""

NOT_A_DOCUMENT: Final = 40228
"""MongoDB's error code for a replacement that is not a document."""

_NOT_OF_ONE: Final = frozenset({b"q", b"upsert", b"upsertSupplied", b"multi"})

_OF_THE_QUERY: Final = frozenset({b"query", b"sort", b"hint", b"update", b"arrayFilters"})


def previewed_statement(statement: bytes, query: bytes, preview: Preview, *, is_collated: bool) -> Mapping[str, Any]:
    """Return the statement of an ``update`` with the previewed effect, under the simple or another collation."""
    if preview.before is not None:
        made = _with_previewed_result(statement, b"u", preview.after)
        narrowed = element(b"q", OBJECT, only_if_unchanged(query, preview.before, is_collated=is_collated))
        return raw_document(append(without(made, _NOT_OF_ONE), narrowed))
    if preview.after is not None:
        return {"q": raw_document(NOTHING), "u": _producing(preview.after), "upsert": True}
    return FINDING_NOTHING


def previewed_find_and_modify(body: bytes, query: bytes, preview: Preview, *, is_collated: bool) -> bytes:
    """Return the body of the ``findAndModify`` with the previewed effect.

    Args:
        body: the client's command, without the fields that mongod does not accept.
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
    """Return a ``findAndModify`` without effect, which retrieves the result of an executed statement id.

    If mongod has not executed the statement id, it may fail with `NOT_A_DOCUMENT`. mongod recognises the retry of an
    upsert only if this is an upsert too. So it has an update that cannot succeed.
    """
    nothing = element(b"query", OBJECT, NOTHING) + encode_elements({"update": [{"$replaceWith": "$nothing"}]})
    return append(without(body, _OF_THE_QUERY), nothing)


def _with_previewed_result(document: bytes, name: bytes, after: bytes | None) -> bytes:
    """Fix the result of a statement's or command's update to the previewed one.

    Operators always have the same result, except ``$currentDate``. They are kept because they are shorter.
    """
    span = find(document, name)
    if after is None or span is None or not (span[0] == ARRAY or find(document, b"$currentDate", span[2])):
        return document
    return append(without(document, {name, b"arrayFilters"}), encode_elements({name.decode(): _producing(after)}))


def _producing(document: bytes) -> list[Any]:
    """Return a pipeline that produces a document with any field names, without filling in empty timestamps."""
    return [{"$replaceWith": {"$literal": raw_document(document)}}]


def is_update_overtaken(preview: Preview, reply: Mapping[str, Any], *, is_last: bool) -> bool:
    """Whether the statement of an ``update`` must be previewed again.

    Args:
        reply: the reply to the statement alone.
        is_last: whether this was the last attempt.
    """
    errors = reply.get("writeErrors", ())
    if preview.before is not None:
        return not errors and not reply.get("n")
    is_duplicate = any(error["code"] == ErrorCode.DuplicateKey for error in errors)
    return preview.after is not None and is_duplicate and not is_last


def is_find_and_modify_overtaken(preview: Preview, reply: bytes, *, is_last: bool) -> bool:
    """Whether a ``findAndModify`` must be previewed again; ``reply`` is the body of its reply."""
    fields = index(reply)
    if not decode_value(reply, fields[b"ok"]):
        is_duplicate = b"code" in fields and decode_value(reply, fields[b"code"]) == ErrorCode.DuplicateKey
        return preview.before is None and preview.after is not None and is_duplicate and not is_last
    outcome = decode_value(reply, fields[b"lastErrorObject"])
    return preview.before is not None and not outcome.get("n")
