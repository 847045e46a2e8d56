"""Change stream events as values, with their documents as bytes. Pure.

Documents are never decoded and encoded again. So values that Python cannot represent arrive unchanged: symbols, dates
beyond its years, the order of fields.
"""

import decimal
import math
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import bson
from bson.decimal128 import Decimal128
from bson.errors import InvalidBSON
from bson.timestamp import Timestamp

from shardwright.wire import rawbson

DOCUMENT_KINDS: Final = frozenset({"insert", "replace", "update", "delete"})

_TIMESTAMP_TYPE: Final = 0x82
"""The first byte of a resume token; the cluster time follows."""

_NEEDS_NO_FORM: Final = frozenset({rawbson.OBJECT_ID, rawbson.STRING, rawbson.BINARY, rawbson.DATE, rawbson.INT64})
_INT64S: Final = range(-(2**63), 2**63)
_EXACT: Final = decimal.Context(prec=34, Emin=-6143, Emax=6144)
"""The precision of Decimal128."""

Value = tuple[int, bytes]
"""A BSON value: type byte and raw value."""


class EventError(Exception):
    """An event that cannot be parsed."""


@dataclass(frozen=True)
class Delta:
    """The description of an update.

    Attributes:
        sets: fields with their new values, in the order in which the source stores new fields.
        truncations: arrays that became shorter, with their new lengths.
        is_ambiguous: whether ``$set`` cannot express some path: a field name contains a dot or begins with ``$``.
    """

    sets: tuple[tuple[str, Value], ...] = ()
    unsets: tuple[str, ...] = ()
    truncations: tuple[tuple[str, int], ...] = ()
    is_ambiguous: bool = False

    @property
    def paths(self) -> tuple[str, ...]:
        """All fields that the update changes."""
        return (*(path for path, _ in self.sets), *self.unsets, *(path for path, _ in self.truncations))


@dataclass(frozen=True)
class Change:
    """An event.

    Attributes:
        time: ``clusterTime``, shared by all events of a transaction.
        namespace: ``db.collection``, or ``db`` for an event of the whole database.
        key: ``documentKey``, as a document; empty for DDL.
        document: ``fullDocument`` of an insert or replace.
        description: ``operationDescription`` and ``to`` of a DDL event.
        uuid: of the collection; None for views and databases.
        transaction: the id of its multi-document transaction, the same on all shards; None outside one.
    """

    kind: str
    time: Timestamp
    token: bytes
    namespace: str
    key: bytes = rawbson.EMPTY_DOCUMENT
    document: bytes | None = None
    delta: Delta | None = None
    description: Mapping[str, Any] | None = None
    size: int = 0
    uuid: bytes | None = None
    transaction: bytes | None = None

    @property
    def is_of_document(self) -> bool:
        """Whether the event changes a document; otherwise it is DDL."""
        return self.kind in DOCUMENT_KINDS

    @property
    def id(self) -> Value:
        """The ``_id`` of the document."""
        return id_of(self.key)


@dataclass(frozen=True)
class Mark:
    """A position in the stream; all events before it have been read."""

    time: Timestamp
    token: bytes


def id_of(document: bytes) -> Value:
    """Return the ``_id`` of a document or key, in one form for all values that are equal in a unique index.

    So a document that is deleted and inserted again with an equal number of another type keeps its identity. Text that
    is only equal by a collation has several forms.
    """
    found = rawbson.find(document, b"_id")
    if found is None:
        raise EventError("a document without _id")
    kind, _, start, end = found
    value = document[start:end]
    return (kind, value) if kind in _NEEDS_NO_FORM else comparable(kind, value)


def comparable(kind: int, value: bytes) -> Value:
    """Return the common form of all values that are equal: numbers of any type, or a symbol and a text."""
    if kind == rawbson.INT32:
        return rawbson.INT64, struct.pack("<q", *struct.unpack("<i", value))
    if kind in (rawbson.DOUBLE, rawbson.DECIMAL128):
        return _comparable_number(kind, value)
    if kind == rawbson.SYMBOL:
        return rawbson.STRING, value
    if kind in (rawbson.OBJECT, rawbson.ARRAY):
        elements = [
            rawbson.element(name, *comparable(each, value[start:end]))
            for name, (each, _, start, end) in rawbson.spans(value)
        ]
        return kind, rawbson.from_elements(b"".join(elements))
    return kind, value


def _comparable_number(kind: int, value: bytes) -> Value:
    number: float | decimal.Decimal
    if kind == rawbson.DOUBLE:
        (number,) = struct.unpack("<d", value)
        is_nan = math.isnan(number)
    else:
        number = Decimal128.from_bid(value).to_decimal()
        is_nan = number.is_nan()  # comparing a signalling one raises an error
    if is_nan:
        return rawbson.DOUBLE, struct.pack("<d", float("nan"))
    with decimal.localcontext(_EXACT):
        if -(2**64) < number < 2**64 and number == int(number) and int(number) in _INT64S:
            return rawbson.INT64, struct.pack("<q", int(number))
        if isinstance(number, float):
            return kind, value
        try:
            as_float = float(number)
        except OverflowError:
            as_float = 0.0
        if number == as_float:
            return rawbson.DOUBLE, struct.pack("<d", as_float)
        return kind, Decimal128(number.normalize()).bid


def token_time(token: bytes) -> Timestamp:
    """Return the cluster time of a resume token."""
    text = rawbson.decode_document(token).get("_data")
    data = bytes.fromhex(text) if isinstance(text, str) else b""
    if len(data) < 9 or data[0] != _TIMESTAMP_TYPE:
        raise EventError("a resume token that does not begin with a cluster time")
    return Timestamp(int.from_bytes(data[1:5]), int.from_bytes(data[5:9]))


def parse(event: bytes) -> Change:
    """Parse an event."""
    found = rawbson.index(event)

    def raw(name: bytes) -> bytes:
        span = found.get(name)
        return rawbson.EMPTY_DOCUMENT if span is None else event[span[2] : span[3]]

    def value(name: bytes) -> Any:  # noqa: ANN401 - any BSON value
        span = found.get(name)
        return None if span is None else rawbson.decode_value(event, span)

    kind, time, token = value(b"operationType"), value(b"clusterTime"), raw(b"_id")
    if not isinstance(kind, str) or not isinstance(time, Timestamp) or b"_id" not in found:
        raise EventError("an event without a type, a time or a token")
    place = value(b"ns") or {}
    namespace = ".".join(str(place[part]) for part in ("db", "coll") if part in place)
    found_uuid = value(b"collectionUUID")
    uuid = None if found_uuid is None else bytes(found_uuid)
    if kind not in DOCUMENT_KINDS:
        description = {**(value(b"operationDescription") or {}), **({"to": value(b"to")} if b"to" in found else {})}
        return Change(kind, time, token, namespace, description=description, size=len(event), uuid=uuid)
    document = raw(b"fullDocument") if kind in ("insert", "replace") else None
    delta = _delta(raw(b"updateDescription")) if kind == "update" else None
    transaction = raw(b"lsid") + raw(b"txnNumber") if b"txnNumber" in found else None
    return Change(
        kind, time, token, namespace, raw(b"documentKey"), document, delta, None, len(event), uuid, transaction
    )


def _delta(description: bytes) -> Delta:
    found = rawbson.index(description)
    sets: list[tuple[str, Value]] = []
    if not _is_text(description):
        return Delta(is_ambiguous=True)
    if (span := found.get(b"updatedFields")) is not None:
        fields = description[span[2] : span[3]]
        sets = [(path.decode(), (kind, fields[start:end])) for path, (kind, _, start, end) in rawbson.spans(fields)]

    def decoded(name: bytes) -> Any:  # noqa: ANN401 - any BSON value
        span = found.get(name)
        return [] if span is None else rawbson.decode_value(description, span)

    truncations = tuple((each["field"], each["newSize"]) for each in decoded(b"truncatedArrays"))
    unsets = tuple(decoded(b"removedFields"))
    paths = [*(path for path, _ in sets), *unsets, *(path for path, _ in truncations)]
    named = decoded(b"disambiguatedPaths") or {}
    is_ambiguous = any(_is_odd(path.split(".")) for path in paths) or any(
        _is_odd(parts) or any("." in each for each in parts if isinstance(each, str)) for parts in named.values()
    )
    return Delta(tuple(sets), unsets, truncations, is_ambiguous)


def _is_text(description: bytes) -> bool:
    """Whether all paths of an update are UTF-8; a mongod does not require it."""
    found = rawbson.index(description)
    try:
        for part in (b"updatedFields", b"removedFields", b"truncatedArrays"):
            if (span := found.get(part)) is None:
                continue
            inner = description[span[2] : span[3]]
            for path, (kind, _, start, end) in rawbson.spans(inner):
                path.decode()
                if part != b"updatedFields":
                    bson.decode(rawbson.wrap_value(kind, inner[start:end]))
    except (UnicodeDecodeError, InvalidBSON):
        return False
    return True


def _is_odd(parts: Iterable[object]) -> bool:
    """Whether ``$set`` would refuse such a path."""
    return any(isinstance(part, str) and (not part or part.startswith("$")) for part in parts)
