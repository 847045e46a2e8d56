"""Places of the values in a frame that a router reads or may ignore, common to all frames of a layout. Pure."""

from dataclasses import dataclass
from typing import Final, Self

from shardwright.router.writes.batch import WriteKind
from shardwright.sharding.passage_fields import (
    CommonFields,
    free_values,
    only_document,
    only_statement,
    query_of,
    without_document,
)
from shardwright.wire.message import BODY_AT
from shardwright.wire.passages import FRAME_BYTES_MAX, InsertedDocument, Range
from shardwright.wire.rawbson import OBJECT, Span, decode_value, find
from shardwright.wire.request import Request

_UPDATE: Final = b"update"


@dataclass(frozen=True, slots=True)
class PassageLayout:
    """The layout of one frame.

    Attributes:
        request: the request in the frame; a document in its body is cut out.
        common: the places of drivers' fields in ``request``.
        free: the ranges where frames of this layout may differ.
        query_at: the offset of the query; None for inserts.
        collation: the query's collation; None for the default.
    """

    request: Request
    common: CommonFields
    free: list[Range]
    query_at: int | None = None
    collation: dict[str, object] | None = None
    document: InsertedDocument | None = None

    @classmethod
    def of(cls, request: Request, kind: WriteKind | None) -> Self | None:
        """Find the layout of a request's frame; None if values are in unexpected places.

        A batch must have exactly one statement; ``kind`` is None for other commands.

        Raises:
            InvalidBSONError: a part of the frame is not well-formed.
        """
        frame, fields = request.message.frame, request.fields
        if kind is WriteKind.INSERT:
            return cls._of_insert(request)
        common = CommonFields.of(frame, fields)
        if common is None:
            return None
        free = list(common.free)
        if kind is None:
            query_at = query_of(frame, fields, request.name)
            collation = _collation(request.body, fields.get(b"collation"))
            span = fields.get(_UPDATE)
            update = None if span is None else (span[0], BODY_AT + span[2])
        else:
            statement = only_statement(frame, request.body, fields, kind.field)
            if statement is None:
                return None
            at, _ = statement
            query, span = find(frame, b"q", at), find(frame, b"u", at)
            query_at = None if query is None or query[0] != OBJECT else query[2]
            collation = _collation(frame, find(frame, b"collation", at))
            update = None if span is None else (span[0], span[2])
        if query_at is None or len(frame) > FRAME_BYTES_MAX:
            return None
        if update is not None and update[0] == OBJECT:
            free += free_values(frame, update[1], is_deep=True)
        free += free_values(frame, query_at, is_deep=True)
        return cls(request, common, free, query_at, collation)

    @classmethod
    def _of_insert(cls, request: Request) -> Self | None:
        frame = request.message.frame
        document = only_document(frame, request.body, request.fields, WriteKind.INSERT.field)
        if document is None or document.at + document.bytes_after > FRAME_BYTES_MAX:
            return None
        rest = without_document(request, document) if document.is_in_body else request
        common = CommonFields.of(rest.message.frame, rest.fields)
        return None if common is None else cls(rest, common, document.places_in(frame, common.free), document=document)


def _collation(document: bytes, span: Span | None) -> dict[str, object] | None:
    return None if span is None or span[0] != OBJECT else dict(decode_value(document, span))
