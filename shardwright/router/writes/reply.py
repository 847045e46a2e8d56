"""A shard's reply to the statements it was sent, decoded only as far as it is counted."""

from dataclasses import dataclass
from typing import Final

from shardwright.wire import rawbson
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.rawbson import Span, array_documents, decode_value

CLIENT_HIDDEN_FIELDS: Final = frozenset({b"electionId", b"opTime"})
"""Fields that a mongod adds to the reply of a write, and a router removes."""


@dataclass(frozen=True, slots=True)
class ItemError:
    """One entry of ``writeErrors``.

    Attributes:
        index: of the statement in the batch that the shard was sent.
        code: the error code.
        document: the entry as it came.
    """

    index: int
    code: int
    document: bytes


@dataclass(frozen=True, slots=True)
class Upserted:
    """One entry of ``upserted``.

    Attributes:
        index: of the statement in the batch that the shard was sent.
        id_element: the ``_id`` element of the inserted document.
    """

    index: int
    id_element: bytes


@dataclass(frozen=True, slots=True)
class WriteReply:
    """The reply of one shard to (a part of) a batch.

    Attributes:
        n: documents inserted, matched or upserted, or deleted.
        modified: documents changed; 0 except for updates.
        upserted: documents inserted by updates.
        errors: the statements that failed, in order.
        write_concern_error: the raw ``writeConcernError``.
        retried_statement_ids: statements that had been executed before.
    """

    n: int = 0
    modified: int = 0
    upserted: tuple[Upserted, ...] = ()
    errors: tuple[ItemError, ...] = ()
    write_concern_error: bytes | None = None
    retried_statement_ids: tuple[int, ...] = ()

    @classmethod
    def read(cls, body: bytes, fields: dict[bytes, Span]) -> "WriteReply":
        """Read an ``ok: 1`` reply whose elements are at ``fields``.

        Raises:
            InvalidBSONError: it is not well-formed.
        """
        concern = fields.get(b"writeConcernError")
        retried = fields.get(b"retriedStmtIds")
        return cls(
            n=_number(body, fields, b"n"),
            modified=_number(body, fields, b"nModified"),
            upserted=tuple(map(_upserted, _documents(body, fields, b"upserted"))),
            errors=tuple(map(_item_error, _documents(body, fields, b"writeErrors"))),
            write_concern_error=None if concern is None else body[concern[2] : concern[3]],
            retried_statement_ids=() if retried is None else tuple(decode_value(body, retried)),
        )


def _number(body: bytes, fields: dict[bytes, Span], name: bytes) -> int:
    span = fields.get(name)
    return 0 if span is None else int(decode_value(body, span))


def _documents(body: bytes, fields: dict[bytes, Span], name: bytes) -> list[bytes]:
    span = fields.get(name)
    return [] if span is None else array_documents(body, span)


def _item_error(document: bytes) -> ItemError:
    fields = rawbson.index(document)
    code = _number(document, fields, b"code") if b"code" in fields else ErrorCode.UnknownError
    return ItemError(_number(document, fields, b"index"), int(code), document)


def _upserted(document: bytes) -> Upserted:
    fields = rawbson.index(document)
    _, start, _, end = fields[b"_id"]
    return Upserted(_number(document, fields, b"index"), document[start:end])
