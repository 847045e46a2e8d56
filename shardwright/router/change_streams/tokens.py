"""Resume tokens: the sort key and the resume points of a change stream. No I/O.

A token is a document ``{_data: <hex string>, _typeBits?}``. The strings sort as the events do. Each begins with the
cluster time of its event. The token of an event also identifies the event. A *high-water mark* is merely a time, and
sorts before all events of that time.
"""

import re
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

import bson
from bson.timestamp import Timestamp

from shardwright.wire.errors import RemoteProtocolError
from shardwright.wire.rawbson import (
    ARRAY,
    OBJECT,
    STRING,
    Span,
    decode_value,
    find,
    index,
    spans,
    string_value,
    with_value,
)

_DATA: Final = b"_data"

_TIMESTAMP_MARK: Final = "82"
_HIGH_WATER_MARK: Final = "2B0229296E04"
"""Version 1, no event, no transaction operation index, not from an invalidation, and the end mark."""

_EVENT: Final = "2B022C0100"
"""Version 1, an event."""

_ZERO: Final = "29"
_BYTES_OF_NUMBER: Final = 0x2A
_TRUE: Final = "6F"
_BOOLEAN_DIGITS: Final = 2

_UUID: Final = "5A1004"
"""Binary data of 16 bytes and subtype 4."""
_UUID_DIGITS: Final = 32

_DOCUMENT: Final = "46"
_DOCUMENT_ENDS: Final = "0004"
"""The end marks of a document and of the token."""
_ONE_MORE_FIELD: Final = "14616761696E0014"
"""A null field named "again", inside a document."""

_TIME_DIGITS: Final = 16
_BEGINS_WITH_TIME: Final = re.compile("82[0-9A-F]{16,}").fullmatch


@dataclass(frozen=True, slots=True, order=True)
class ResumeToken:
    """A resume token. Tokens compare in the order of their events.

    Attributes:
        data: the hex string that determines the order, in capitals.
        raw: the whole document, for clients and shards.
    """

    data: str
    raw: bytes = field(compare=False)

    @classmethod
    def parse(cls, document: bytes) -> "ResumeToken | None":
        """Parse a token; None if it is malformed, which a mongod reports with its own error."""
        span = find(document, _DATA)
        if span is None or span[0] != STRING:
            return None
        data = str(decode_value(document, span)).upper()  # mongod reads digits in either case and writes capitals
        return cls(data, document) if _BEGINS_WITH_TIME(data) else None

    @classmethod
    def received(cls, document: bytes) -> "ResumeToken":
        """Parse a token from a shard.

        Raises:
            RemoteProtocolError: it is malformed.
        """
        token = cls.parse(document)
        if token is None:
            raise RemoteProtocolError("a change stream with a malformed resume token")
        return token

    @classmethod
    def high_water_mark(cls, time: Timestamp) -> "ResumeToken":
        """Return the token before all events of a cluster time."""
        data = f"{_TIMESTAMP_MARK}{time.time:08X}{time.inc:08X}{_HIGH_WATER_MARK}"
        return cls(data, bson.encode({"_data": data}))

    @property
    def time(self) -> Timestamp:
        """The cluster time of the token."""
        start = len(_TIMESTAMP_MARK)
        return Timestamp(int(self.data[start : start + 8], 16), int(self.data[start + 8 : start + 16], 16))

    @property
    def is_high_water_mark(self) -> bool:
        """Whether this is only a time, not the token of an event."""
        return self.data[len(_TIMESTAMP_MARK) + _TIME_DIGITS :] == _HIGH_WATER_MARK

    @property
    def is_of_invalidation(self) -> bool:
        """Whether this is the token of an event that ended its stream."""
        return self._after_number.startswith(_TRUE)

    @property
    def ends_collection(self) -> bool:
        """Whether this is the token of the event that ended a collection's stream."""
        return self.is_of_invalidation and self.collection_uuid is not None

    @property
    def collection_uuid(self) -> UUID | None:
        """The collection that the event is about; None if it is not about one."""
        rest = self._after_number[_BOOLEAN_DIGITS:]
        digits = rest[len(_UUID) : len(_UUID) + _UUID_DIGITS]
        return UUID(digits) if rest.startswith(_UUID) and len(digits) == _UUID_DIGITS else None

    def repeated(self) -> "ResumeToken":
        """Return the next token after this one, for another shard's event with the same token.

        The mongods' tokens name documents by ``_id`` alone. Two shards' events have the same token if they concern the
        same ``_id`` at the same time, as when a transaction moves a document. In a genuine cluster they differ by the
        shard key. Here the document in the token gets one more field. A token without a document, or from an
        invalidation, stays unchanged.
        """
        named = self._after_number[_BOOLEAN_DIGITS + len(_UUID) + _UUID_DIGITS :]
        is_named = named.startswith(_DOCUMENT) and named.endswith(_DOCUMENT_ENDS)
        if self.collection_uuid is None or self.is_of_invalidation or not is_named:
            return self
        data = self.data.removesuffix(_DOCUMENT_ENDS) + _ONE_MORE_FIELD + _DOCUMENT_ENDS
        return ResumeToken(data, with_value(self.raw, index(self.raw)[_DATA], string_value(data)))

    @property
    def _after_number(self) -> str:
        """The part after the index of the operation in its transaction; empty unless it is the token of an event."""
        rest = self.data[len(_TIMESTAMP_MARK) + _TIME_DIGITS :]
        if not rest.startswith(_EVENT):
            return ""
        # The type of the number determines its length in bytes, of two digits each.
        kind = rest[len(_EVENT) : len(_EVENT) + 2]
        digits = 0 if kind == _ZERO else 2 * max(int(kind or "0", 16) - _BYTES_OF_NUMBER, 0)
        return rest[len(_EVENT) + 2 + digits :]


def after(time: Timestamp) -> Timestamp:
    """Return the next cluster time."""
    return Timestamp(time.time, time.inc + 1)


def token_in_sort_key(document: bytes, sort_key: Span) -> ResumeToken:
    """Decode the token of an event from the ``$sortKey`` that a shard adds for the merge.

    Raises:
        RemoteProtocolError: there is none.
    """
    kind, _, start, end = sort_key
    if kind == ARRAY:
        _, (kind, _, start, end) = next(iter(spans(document, start)), (b"", (0, 0, 0, 0)))
    if kind != OBJECT:
        raise RemoteProtocolError("a change event without a resume token")
    return ResumeToken.received(document[start:end])
