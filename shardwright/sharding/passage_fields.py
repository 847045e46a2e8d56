"""The fields of a frame whose values do not affect how a router or a shard forwards it. Pure.

Drivers send a session, a transaction number and a cluster time with each command; routers add nothing else that varies.
Of queries and updates only the values of the shard key matter, and their positions depend on the layout of the frame.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, Self

from shardwright.sharding.clock import CLUSTER_TIME
from shardwright.sharding.cluster_time import DUMMY_SIGNATURE_ELEMENT
from shardwright.sharding.shard_key import ShardKeyField, ShardKeyPattern
from shardwright.sharding.transaction_protocol import TXN_NUMBER
from shardwright.wire.message import BODY_AT, OpMsg, op_msg
from shardwright.wire.passages import InsertedDocument, Range
from shardwright.wire.rawbson import (
    ARRAY,
    BINARY,
    BOOL,
    DATE,
    DECIMAL128,
    DOUBLE,
    INT32,
    INT64,
    OBJECT,
    OBJECT_ID,
    STRING,
    TIMESTAMP,
    Span,
    spans,
)
from shardwright.wire.request import Request

QUERIES: Final = {"find": b"filter", "findAndModify": b"query", "findandmodify": b"query"}
"""Name of the argument with the query, by command."""

_LSID: Final = b"lsid"
_READ_CONCERN: Final = b"readConcern"
_AFTER_TIME: Final = b"afterClusterTime"
_AT_TIME: Final = b"atClusterTime"
_ID_OF_SESSION: Final = b"\x05id\0\x10\0\0\0\x04"
_UUID_BYTES: Final = 16

SESSION_ID_AT: Final = 4 + len(_ID_OF_SESSION)
"""Offset of the UUID in a session document that begins with its id."""

SESSION_BYTES: Final = SESSION_ID_AT + _UUID_BYTES + 1
"""Length of a session document with an id alone."""

_TIME_NAME: Final = b"\x11clusterTime\0"
_TIME_BYTES: Final = 8
_SIGNATURE_BEGINNING: Final = b"\x03signature\0" + DUMMY_SIGNATURE_ELEMENT[11:15] + b"\x05hash\0\x14\0\0\0\0"
_HASH_BYTES: Final = 20
_KEY_ID: Final = b"\x12keyId\0"
_KEY_ID_BYTES: Final = 8

_FIXED: Final = frozenset({DOUBLE, OBJECT_ID, DATE, INT32, TIMESTAMP, INT64, DECIMAL128})
_KEYS: Final = frozenset({INT32, INT64, OBJECT_ID, STRING, DATE, BINARY, BOOL})
"""Types for which equality in a query means exactly that value's key bytes, hashed or not."""


def usual_session_id(lsid: bytes) -> bytes | None:
    """Return the UUID of a session document that has nothing else, as drivers send it; None for any other document."""
    is_usual = len(lsid) == SESSION_BYTES and lsid.startswith(_ID_OF_SESSION, 4)
    return lsid[SESSION_ID_AT : SESSION_ID_AT + _UUID_BYTES] if is_usual else None


@dataclass(slots=True)
class CommonFields:
    """The fields of drivers in a frame, as offsets.

    Attributes:
        free: where bytes may differ.
        lsid: the session; None without one.
        time_at: the 8 bytes of the cluster time; 0 without one.
        number_at: the 8 bytes of the transaction number; 0 without one.
        awaited_at: the 8 bytes of a read's ``afterClusterTime``; 0 without one.
    """

    free: list[Range] = field(default_factory=list)
    lsid: Range | None = None
    time_at: int = 0
    number_at: int = 0
    awaited_at: int = 0

    @classmethod
    def of(cls, frame: bytes, fields: Mapping[bytes, Span]) -> Self | None:
        """Locate the fields in a frame whose first section is the body; None if its times are in an unusual form."""
        found = cls()
        session = fields.get(_LSID)
        if session is not None:
            start, end = BODY_AT + session[2], BODY_AT + session[3]
            found.lsid = start, end
            if session[0] == OBJECT and frame.startswith(_ID_OF_SESSION, start + 4):
                at = start + 4 + len(_ID_OF_SESSION)
                found.free.append((at, at + _UUID_BYTES))
        number = fields.get(TXN_NUMBER)
        if number is not None and number[0] == INT64:
            found.number_at = BODY_AT + number[2]
            found.free.append((found.number_at, BODY_AT + number[3]))
        concern = fields.get(_READ_CONCERN)
        if concern is not None and not found._take_read_concern(frame, concern):
            return None
        time = fields.get(CLUSTER_TIME)
        return found if time is None or found._take_time(frame, time) else None

    def _take_read_concern(self, frame: bytes, span: Span) -> bool:
        if span[0] != OBJECT:
            return False
        named = list(spans(frame, BODY_AT + span[2]))
        awaited = [each for name, each in named if name == _AFTER_TIME]
        if any(name == _AT_TIME for name, _ in named) or len(awaited) > 1:
            return False
        for kind, _, start, end in awaited:
            if kind != TIMESTAMP:
                return False
            self.awaited_at = start
            self.free.append((start, end))
        return True

    def _take_time(self, frame: bytes, span: Span) -> bool:
        at = BODY_AT + span[2] + 4
        if span[0] != OBJECT or not frame.startswith(_TIME_NAME, at):
            return False
        self.time_at = at + len(_TIME_NAME)
        signature_at = self.time_at + _TIME_BYTES
        hash_at = signature_at + len(_SIGNATURE_BEGINNING)
        key_at = hash_at + _HASH_BYTES
        end = key_at + len(_KEY_ID) + _KEY_ID_BYTES
        self.free += [(self.time_at, signature_at), (hash_at, key_at), (key_at + len(_KEY_ID), end)]
        return (
            frame.startswith(_SIGNATURE_BEGINNING, signature_at)
            and frame.startswith(_KEY_ID, key_at)
            and end + 2 == BODY_AT + span[3]
        )


def free_values(frame: bytes, document_at: int, *, is_deep: bool = False) -> Iterator[Range]:
    """Yield the bytes of scalar values in a document that do not determine a length.

    If ``is_deep``, include values of nested documents.
    """
    for _, (kind, _, start, end) in spans(frame, document_at):
        if kind in _FIXED:
            yield start, end
        elif kind == STRING:
            yield start + 4, end - 1
        elif kind == BINARY:
            yield start + 5, end
        elif kind == OBJECT and is_deep:
            yield from free_values(frame, start, is_deep=True)


class KeyInQuery:
    """Positions of the values of a shard key in the query of frames of one layout."""

    __slots__ = ("_encode", "_end", "_others", "_start")

    def __init__(self, values: Iterable[tuple[ShardKeyField, Span]]) -> None:
        first, *self._others = [(each.encoder_for(kind), start, end) for each, (kind, _, start, end) in values]
        self._encode, self._start, self._end = first  # most keys have one field

    @classmethod
    def find(cls, frame: bytes, query_at: int, pattern: ShardKeyPattern, *, is_simple: bool) -> Self | None:
        """Locate the values in a frame's query; None unless it fixes the whole key by equalities with plain values.

        If ``is_simple``, strings are compared as bytes.
        """
        found: dict[bytes, Span] = {}
        for name, span in spans(frame, query_at):
            if name.startswith(b"$") or name in found:
                return None
            found[name] = span
        values = []
        for each in pattern.fields:
            value = found.pop(each.name) if each.name in found else None
            if value is None or value[0] not in _KEYS or len(each.path) > 1 or (value[0] == STRING and not is_simple):
                return None
            values.append((each, value))
        if any(name.startswith(each.name + b".") for name in found for each in pattern.fields):
            return None
        return cls(values)

    def bytes_in(self, frame: bytes) -> bytes:
        """Return the key bytes in a frame of the layout."""
        first = self._encode(frame, self._start, self._end)
        if not self._others:
            return first
        return b"".join((first, *[encode(frame, start, end) for encode, start, end in self._others]))


def query_of(frame: bytes, fields: Mapping[bytes, Span], command: str) -> int | None:
    """Return the offset of the query in the frame of one of `QUERIES`; None without a query."""
    span = fields.get(QUERIES[command])
    return None if span is None or span[0] != OBJECT else BODY_AT + span[2]


def only_document(frame: bytes, body: bytes, fields: Mapping[bytes, Span], argument: bytes) -> InsertedDocument | None:
    """Locate the only document of an insert; None unless there is exactly one. Arguments as `only_statement`."""
    place = only_statement(frame, body, fields, argument)
    if place is None:
        return None
    at, section_at = place
    if section_at:
        return InsertedDocument(section_at, at)
    end = at + int.from_bytes(frame[at : at + 4], "little")
    return InsertedDocument(BODY_AT + fields[argument][2], at, len(frame) - end)


def without_document(request: Request, document: InsertedDocument) -> Request:
    """Remove the document from its array in a request; the body has the fields of all frames of its layout.

    The array keeps the name of the document, so it must not be read. The frame must be a single section.
    """
    frame = request.message.frame
    size = len(frame) - document.bytes_after - document.at
    length_at, at, end = document.length_at, document.at, document.at + size
    array_length = (int.from_bytes(frame[length_at : length_at + 4], "little") - size).to_bytes(4, "little")
    body_length = (len(frame) - size - BODY_AT).to_bytes(4, "little")
    body = body_length + frame[BODY_AT + 4 : length_at] + array_length + frame[length_at + 4 : at] + frame[end:]
    return Request(OpMsg(op_msg(body, request_id=request.message.request_id)))


def only_statement(frame: bytes, body: bytes, fields: Mapping[bytes, Span], argument: bytes) -> Range | None:
    """Locate the only statement of a write in a frame whose first section is the body, and the length of its section.

    Returns:
        The offsets of the statement and of the section's length; the latter is 0 if the statement is in the body. None
        unless there is exactly one statement.
    """
    end = BODY_AT + len(body)
    span = fields.get(argument)
    if span is not None:
        if span[0] != ARRAY or end != len(frame):
            return None
        statements = [each for _, each in spans(body, span[2])]
        return (BODY_AT + statements[0][2], 0) if len(statements) == 1 and statements[0][0] == OBJECT else None
    name = argument + b"\0"
    section_at, at = end + 1, end + 5 + len(name)
    if not frame.startswith(b"\x01", end) or not frame.startswith(name, end + 5) or at + 5 > len(frame):
        return None
    is_whole = int.from_bytes(frame[section_at : section_at + 4], "little") == len(frame) - section_at
    is_only = int.from_bytes(frame[at : at + 4], "little") == len(frame) - at
    return (at, section_at) if is_whole and is_only else None
