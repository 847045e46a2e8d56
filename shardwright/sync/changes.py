"""Events of a change stream as values, whose documents stay bytes. Pure.

Documents are not decoded and encoded again: types that Python does not have (symbols, dates beyond its years, the order
of fields) arrive as the source has them.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from bson.timestamp import Timestamp

from shardwright.wire import rawbson

DOCUMENT_KINDS: Final = frozenset({"insert", "replace", "update", "delete"})

_TIMESTAMP_TYPE: Final = 0x82
"""The first byte of a resume token: a timestamp follows, the cluster time."""

Value = tuple[int, bytes]
"""A BSON value: type byte and raw value."""


class EventError(Exception):
    """An event that cannot be read."""


@dataclass(frozen=True)
class Delta:
    """The description of an update.

    Attributes:
        sets: fields with their new values, in the order in which the source stores new fields.
        unsets: removed fields.
        truncations: arrays that became shorter, with their new lengths.
        is_ambiguous: whether some path is not one for ``$set``: a name is known to have a dot or to begin with ``$``.
    """

    sets: tuple[tuple[str, Value], ...] = ()
    unsets: tuple[str, ...] = ()
    truncations: tuple[tuple[str, int], ...] = ()
    is_ambiguous: bool = False

    @property
    def paths(self) -> tuple[str, ...]:
        """All fields that it changes."""
        return (*(path for path, _ in self.sets), *self.unsets, *(path for path, _ in self.truncations))


@dataclass(frozen=True)
class Change:
    """An event.

    Attributes:
        kind: ``operationType``.
        time: ``clusterTime``; all events of a transaction have the same.
        token: the resume token, as a document.
        namespace: ``db.collection``, or ``db`` if the whole database is meant.
        key: ``documentKey``, as a document; empty for DDL.
        document: ``fullDocument`` of an insert or replace.
        delta: of an update.
        description: what a DDL event says beside its namespace: ``operationDescription`` and ``to``.
        size: bytes of the event.
        uuid: of the collection; None for views and databases.
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

    @property
    def is_of_document(self) -> bool:
        """Whether it changes a document; otherwise it is DDL."""
        return self.kind in DOCUMENT_KINDS

    @property
    def id(self) -> Value:
        """The ``_id`` of the document."""
        return id_of(self.key)


@dataclass(frozen=True)
class Mark:
    """The stream has no event before this token that has not been read.

    Attributes:
        time: its cluster time.
        token: the resume token, as a document.
    """

    time: Timestamp
    token: bytes


def id_of(document: bytes) -> Value:
    """The ``_id`` of a document or key, as bytes: the same document has the same one for ever."""
    found = rawbson.find(document, b"_id")
    if found is None:
        raise EventError("a document without _id")
    kind, _, start, end = found
    return kind, document[start:end]


def token_time(token: bytes) -> Timestamp:
    """The cluster time at which a resume token stands.

    Raises:
        EventError: it is not a resume token of MongoDB.
    """
    text = rawbson.decode_document(token).get("_data")
    data = bytes.fromhex(text) if isinstance(text, str) else b""
    if len(data) < 9 or data[0] != _TIMESTAMP_TYPE:
        raise EventError("a resume token that does not begin with a cluster time")
    return Timestamp(int.from_bytes(data[1:5]), int.from_bytes(data[5:9]))


def parse(event: bytes) -> Change:
    """An event as a value.

    Raises:
        EventError: it lacks what all events have.
    """
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
    return Change(kind, time, token, namespace, raw(b"documentKey"), document, delta, None, len(event), uuid)


def _delta(description: bytes) -> Delta:
    found = rawbson.index(description)
    sets: list[tuple[str, Value]] = []
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


def _is_odd(parts: Iterable[object]) -> bool:
    """Whether ``$set`` would refuse such a path."""
    return any(isinstance(part, str) and (not part or part.startswith("$")) for part in parts)
