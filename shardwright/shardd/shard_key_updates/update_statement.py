"""One entry of ``updates``, and the ``findAndModify`` with the same effect. Pure."""

from collections.abc import Mapping
from typing import Any

from shardwright.wire.field_errors import missing_field, wrong_type
from shardwright.wire.rawbson import ARRAY, OBJECT, Span, array_documents, decode_value, find, index, raw_document
from shardwright.wire.request import Request


class UpdateStatement:
    """A statement of an ``update``.

    Args:
        raw: its document.

    Attributes:
        raw: see above.
        fields: its fields.
        query: its ``q``.

    Raises:
        CommandError: 40414 or TypeMismatch, it has no ``q``.
    """

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
        """The document to insert if none matches, whatever the pipeline makes of it; None if it is the pipeline's."""
        constants = self.fields.get(b"c")
        if constants is None or not (self._value(b"upsert") and self._value(b"upsertSupplied")):
            return None
        new = find(self.raw, b"new", constants[2])
        return None if new is None or new[0] != OBJECT else self.raw[new[2] : new[3]]

    def modification(self, request: Request) -> dict[str, Any]:
        """The arguments of the ``findAndModify`` with the same effect; it does not insert what is `supplied`.

        Args:
            request: the ``update`` that the statement is part of.
        """
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
    """Operators or a replacement as a raw document, a pipeline as a list of raw stages."""
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
