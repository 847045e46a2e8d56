"""The outcomes of a batch's statements so far, and the reply that reports them.

A shard's reply is decoded only as far as needed for the counts. Errors of several shards are combined into the errors
that a single server would return, with MongoDB's texts. An update that would move a document to another shard fails on
its owner with WouldChangeOwningShard and changes nothing. Moving the document takes a transaction on both shards.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from struct import Struct
from typing import Any, Final

import bson

from shardwright.router.writes.batch import WriteBatch, WriteKind
from shardwright.sharding.bson_text import document_text
from shardwright.wire import rawbson
from shardwright.wire.error_codes import Category, ErrorCode, code_name, has_category
from shardwright.wire.errors import RETRYABLE_WRITE_ERROR, CommandError
from shardwright.wire.limits import BSON_OBJECT_BYTES_MAX, check_size
from shardwright.wire.rawbson import (
    INT32,
    STRING,
    Span,
    array_documents,
    decode_document,
    decode_value,
    element,
    from_elements,
    raw_document,
)

ERROR_MESSAGE_BYTES_MAX: Final = 1 << 20
"""Maximum bytes of error texts in one reply; later errors get an empty ``errmsg``, as in mongod."""

_EMPTY_MESSAGE: Final = element(b"errmsg", STRING, b"\x01\0\0\0\0")
_DETAILS: Final = frozenset({b"errmsg", b"keyPattern", b"keyValue", b"collation", b"errInfo"})
_ELEMENT_BYTES: Final = 1 + 5 + 1
"""Size of the type and name of an array element; the name has at most five digits."""

_RETRIED_BYTES: Final = _ELEMENT_BYTES + 4
_UPSERTED_BYTES: Final = _ELEMENT_BYTES + 4 + len(b"\x10index\0") + 4 + 1
"""Maximum size of an entry of ``upserted`` without its id."""

_WRITE_CONCERN_ERROR: Final = "writeConcernError"

_pack_int32 = Struct("<i").pack


def error_document(error: CommandError) -> bytes:
    """Build a ``writeErrors`` entry for a failure without an entry from a shard; `with_index` sets its index.

    The write concern error of a command that failed as a whole, such as a killed one, does not belong to a statement.
    """
    extra = {name: value for name, value in error.extra.items() if name != _WRITE_CONCERN_ERROR}
    return bson.encode({"index": 0, "code": error.code, "errmsg": error.message, **extra})


def with_index(document: bytes, index: int) -> bytes:
    """Set the index of a ``writeErrors`` entry to the statement's position in the client's batch."""
    span = rawbson.index(document).get(b"index")
    element = rawbson.element(b"index", INT32, _pack_int32(index))
    if span is None:
        return rawbson.from_elements(element + document[4:-1])
    return rawbson.from_elements(document[4 : span[1]] + element + document[span[3] : -1])


def with_limited_messages(documents: Sequence[bytes]) -> list[bytes]:
    """Empty the messages of ``writeErrors`` entries that would make the reply too large."""
    room = ERROR_MESSAGE_BYTES_MAX
    limited: list[bytes] = []
    for document in documents:
        span = rawbson.index(document).get(b"errmsg")
        if span is not None:
            if room <= 0:
                document = rawbson.from_elements(document[4 : span[1]] + _EMPTY_MESSAGE + document[span[3] : -1])
            room -= span[3] - span[2]
        limited.append(document)
    return limited


def within_size(documents: Sequence[bytes], room: int) -> list[bytes]:
    """Reduce ``writeErrors`` entries to index and code, starting with the first one that would not fit.

    Args:
        room: maximum size of all entries together.
    """
    if sum(map(len, documents)) <= room:
        return [*documents]
    bare = [_without_details(document) for document in documents]
    room -= sum(map(len, bare))
    limited: list[bytes] = []
    for document, least in zip(documents, bare, strict=True):
        room -= len(document) - len(least)
        if room < 0:
            return [*limited, *bare[len(limited) :]]
        limited.append(document)
    return limited


def _without_details(document: bytes) -> bytes:
    """Keep what every ``writeErrors`` entry has, with an empty message."""
    return rawbson.append(rawbson.without(document, _DETAILS), _EMPTY_MESSAGE)


def combined_error(documents: Sequence[bytes]) -> bytes:
    """Combine the errors of a statement on several shards: theirs if they agree, else one that lists them all."""
    if len(documents) == 1:
        return documents[0]
    decoded = [decode_document(document) for document in documents]
    if len({error.get("code") for error in decoded}) == 1:
        return documents[0]
    messages = " :: and :: ".join(str(error.get("errmsg", "")) for error in decoded)
    return error_document(
        CommandError(
            ErrorCode.MultipleErrorsOccurred,
            f"multiple errors for op : {messages}",
            extra={"errInfo": {"causedBy": [raw_document(document) for document in documents]}},
        )
    )


def merged_write_concern_error(errors: Sequence[tuple[str, bytes]]) -> dict[str, Any]:
    """Merge the shards' write concern errors, given as raw errors by shard, into the batch's ``writeConcernError``."""
    decoded = [(shard, decode_document(error)) for shard, error in errors]
    if len(decoded) == 1:
        shard, error = decoded[0]
        code = int(error.get("code", ErrorCode.WriteConcernFailed))
        message = _concern_message(shard, error)
    else:
        code = ErrorCode.WriteConcernFailed
        message = "multiple errors reported : " + " :: and :: ".join(
            f"{code_name(error.get('code', code))}: {_concern_message(shard, error)}" for shard, error in decoded
        )
    return {"code": int(code), "codeName": code_name(code), "errmsg": message, "errInfo": {}}


def _concern_message(shard: str, error: Mapping[str, Any]) -> str:
    details = f"; Error details: {document_text(bson.encode(error['errInfo']))}" if error.get("errInfo") else ""
    return f"{error.get('errmsg', '')}{details} at {shard}"


CLIENT_HIDDEN_FIELDS: Final = frozenset({b"electionId", b"opTime"})
"""Fields that a mongod adds to the reply of a write, and a router removes."""


@dataclass(frozen=True, slots=True)
class ItemError:
    """One entry of ``writeErrors``; ``index`` is the statement's position in the message to the shard."""

    index: int
    code: int
    document: bytes


@dataclass(frozen=True, slots=True)
class Upserted:
    """One entry of ``upserted``; ``index`` is the statement's position in the message to the shard."""

    index: int
    id_element: bytes


@dataclass(frozen=True, slots=True)
class WriteReply:
    """The reply of one shard to its part of a batch.

    Attributes:
        n: documents inserted, matched or upserted, or deleted.
        modified: documents changed; 0 except for updates.
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
        """Read an ``ok: 1`` reply whose elements are at ``fields``."""
        concern = fields.get(b"writeConcernError")
        retried = fields.get(b"retriedStmtIds")
        return cls(
            n=_number(body, fields, b"n"),
            modified=_number(body, fields, b"nModified"),
            upserted=tuple(map(_upserted_ids, _documents(body, fields, b"upserted"))),
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


def _upserted_ids(document: bytes) -> Upserted:
    fields = rawbson.index(document)
    _, start, _, end = fields[b"_id"]
    return Upserted(_number(document, fields, b"index"), document[start:end])


class BatchOutcome:
    """The sums and lists of a batch; a statement is identified by its position in the client's batch."""

    def __init__(self, batch: WriteBatch) -> None:
        self._batch = batch
        self._n = 0
        self._modified = 0
        self._upserted: list[tuple[int, bytes]] = []
        self._concern_errors: list[tuple[str, bytes]] = []
        self._retried: list[int] = []
        self.errors: dict[int, bytes] = {}

    def add(self, shard: str, positions: list[int], reply: WriteReply) -> None:
        """Add a shard's reply to the statements at some positions, except for its item errors."""
        self._n += reply.n
        self._modified += reply.modified
        self._retried += reply.retried_statement_ids
        self._upserted += [(positions[each.index], each.id_element) for each in reply.upserted]
        if reply.write_concern_error is not None:
            self._concern_errors.append((shard, reply.write_concern_error))

    def reply(self) -> dict[str, Any]:
        """Build the reply of the finished batch, without the fields of every reply.

        Raises:
            CommandError: BSONObjectTooLarge, there are too many upserted ids; the batch has been executed.
        """
        if self._batch.is_unacknowledged:
            return {}
        reply: dict[str, Any] = {}
        if self._batch.kind is WriteKind.UPDATE:
            reply["nModified"] = self._modified
        reply["n"] = self._n
        if self._upserted:
            check_size(self._upserted_bytes)
            reply["upserted"] = [_upserted(position, id_element) for position, id_element in sorted(self._upserted)]
        if self.errors:
            reply["writeErrors"] = self._write_errors()
        if self._concern_errors and self._tells_of_write_concern:
            concern_error = reply["writeConcernError"] = merged_write_concern_error(self._concern_errors)
            if self._batch.is_retryable and has_category(concern_error["code"], Category.RETRYABLE):
                reply["errorLabels"] = [RETRYABLE_WRITE_ERROR]
        if self._retried and self._batch.is_numbered:
            reply["retriedStmtIds"] = self._retried_in_order()
        return reply

    @property
    def _upserted_bytes(self) -> int:
        return sum([len(id_element) + _UPSERTED_BYTES for _, id_element in self._upserted])

    def _write_errors(self) -> list[Any]:
        """Build the entries of ``writeErrors``, without details that do not fit alongside the other lists."""
        indexed = [with_index(document, position) for position, document in sorted(self.errors.items())]
        taken = self._upserted_bytes + _ELEMENT_BYTES * len(indexed) + _RETRIED_BYTES * len(self._retried)
        limited = within_size(with_limited_messages(indexed), BSON_OBJECT_BYTES_MAX - taken)
        check_size(taken + sum(map(len, limited)))
        return [raw_document(document) for document in limited]

    def _retried_in_order(self) -> list[int]:
        """Return the ids of retried statements in the order of the client's batch."""
        position_of = {each: position for position, each in enumerate(self._batch.statement_ids())}
        return sorted(self._retried, key=lambda each: position_of.get(each, len(position_of)))

    @property
    def _tells_of_write_concern(self) -> bool:
        """Whether to report the write concern error, as mongos does.

        In an ordered batch this requires that all statements succeeded, in an unordered one that any did.
        """
        if self._batch.is_ordered:
            return not self.errors
        return len(self.errors) < len(self._batch.statements)


def _upserted(position: int, id_element: bytes) -> Any:  # noqa: ANN401 - what pymongo copies into a document
    return raw_document(from_elements(element(b"index", INT32, position.to_bytes(4, "little")) + id_element))


def move_refused(statements: int) -> CommandError:
    """Build the client's error in place of WouldChangeOwningShard, for a batch of this many statements."""
    if statements > 1:
        return CommandError(
            ErrorCode.InvalidOptions,
            "Document shard key value updates that cause the doc to move shards must be sent with write batch of "
            "size 1",
        )
    return CommandError(
        ErrorCode.IllegalOperation,
        "Updating the shard key value so that the document belongs to another shard is not supported",
    )
