"""Shard key patterns: the fields that place a document, and operations on keys of these fields.

The paths of shard keys do not look into arrays: an array at the end of a path or anywhere on it raises
ShardKeyNotFound. A value nested too deep raises Overflow.

A *shard key document* is BSON of the form ``{"<path>": <value>, …}``. It has the pattern's paths, dots included, in the
pattern's order, and hashed values already hashed. Chunk bounds in the catalog are such documents. *Key bytes* are its
order-preserving encoding (`sharding.key_order`), by which routing tables are searched.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from struct import Struct
from typing import Any, Final

import bson

from shardwright.sharding.bson_text import document_text
from shardwright.sharding.hashing import hash_value
from shardwright.sharding.key_order import (
    ENCODED_MAX_KEY,
    ENCODED_MIN_KEY,
    ENCODED_NULL,
    Encoder,
    encode_int64,
    encode_key,
    encode_value,
    encoder_of,
)
from shardwright.wire import rawbson
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.limits import NESTING_LEVELS_MAX
from shardwright.wire.rawbson import Span

_pack_int64 = Struct("<q").pack

_NESTING = (rawbson.OBJECT, rawbson.ARRAY)
_NULL_SPAN = (rawbson.NULL, 0, 0, 0)


@dataclass(frozen=True, slots=True)
class ShardKeyField:
    """A path with its direction, which is ascending or hashed.

    Attributes:
        name: the dotted path, as UTF-8.
        path: the parts of ``name``.
        ancestors: the dotted paths from the first part of ``path`` down to ``name`` itself.
    """

    name: bytes
    hashed: bool
    path: tuple[bytes, ...] = field(init=False, repr=False, compare=False)
    ancestors: tuple[bytes, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        path = tuple(self.name.split(b"."))
        object.__setattr__(self, "path", path)
        object.__setattr__(self, "ancestors", tuple(b".".join(path[: n + 1]) for n in range(len(path))))

    def find_in(self, document: bytes, top_level: dict[bytes, Span]) -> Span | None:
        """Locate the field's value in ``document``; None if it is missing.

        ``top_level`` has its top-level elements, at least the one that the path begins with.
        """
        return self.find_below(document, top_level.get(self.path[0]))

    def find_below(self, document: bytes, span: Span | None) -> Span | None:
        """Locate the value like `find_in`, given the element that the path begins with, if there is one."""
        if span is not None and len(self.path) > 1:
            span = descend(document, span, self.path[1:])
        if span is not None and span[0] in _NESTING:
            if span[0] == rawbson.ARRAY:
                raise array_in_shard_key()
            refuse_deep_nesting(document, span)
        return span

    def key_value(self, document: bytes, span: Span | None) -> tuple[int, bytes]:
        """Return type and raw value in the shard key for a found value (null if it is missing)."""
        if self.hashed:
            return rawbson.INT64, _pack_int64(self.hash_of(document, span))
        if span is None:
            return rawbson.NULL, b""
        return span[0], document[span[2] : span[3]]

    def key_bytes(self, document: bytes, span: Span | None) -> bytes:
        """Return the order-preserving bytes of `key_value`."""
        if self.hashed:
            return encode_int64(_pack_int64(self.hash_of(document, span)), 0, 8)
        return ENCODED_NULL if span is None else encode_value(document, span)

    def encoder_for(self, kind: int) -> Encoder:
        """Return the encoder of found values of one type, with the same result as `key_bytes`."""
        if not self.hashed:
            return encoder_of(kind)
        return lambda document, start, end: self.key_bytes(document, (kind, start, start, end))

    @staticmethod
    def hash_of(document: bytes, span: Span | None) -> int:
        """Return the hash of a found value; a missing one hashes as null."""
        return hash_value(document, span or _NULL_SPAN)


def array_in_shard_key() -> CommandError:
    """Build MongoDB's error for a document with an array on a path of the shard key."""
    return CommandError(ErrorCode.ShardKeyNotFound, "Shard key cannot contain array values or array descendants.")


def refuse_deep_nesting(document: bytes, span: Span) -> None:
    """Raise the Overflow of mongod for a value nested so deep that walking it would not be safe."""
    if span[0] in _NESTING and rawbson.depth_exceeds(document, NESTING_LEVELS_MAX, span[2]):
        raise CommandError(ErrorCode.Overflow, "BSONObj exceeds maximum nested object depth")


def descend(document: bytes, span: Span, path: tuple[bytes, ...]) -> Span | None:
    """Locate the value at ``path`` below the one at ``span``, or the first array on the way; None if there is none."""
    for part in path:
        if span[0] != rawbson.OBJECT:
            return span if span[0] == rawbson.ARRAY else None
        for name, below in rawbson.spans(document, span[2]):
            if name == part:
                span = below
                break
        else:
            return None
    return span


_HASHED: Final = "hashed"
_ID: Final = b"_id"


@dataclass(frozen=True, slots=True)
class ShardKeyPattern:
    """The fields of a shard key, ascending except for at most one hashed.

    Attributes:
        fields_by_path: for each path of the key and each of its ancestors, the positions of the fields on it, with the
            number of parts of the field's path that it covers.
    """

    document: bytes
    fields: tuple[ShardKeyField, ...]
    fields_by_path: Mapping[bytes, tuple[tuple[int, int], ...]] = field(init=False, repr=False, compare=False)
    _top_level: frozenset[bytes] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        on_path: dict[bytes, tuple[tuple[int, int], ...]] = {}
        for position, each in enumerate(self.fields):
            for levels, path in enumerate(each.ancestors, 1):
                on_path[path] = (*on_path.get(path, ()), (position, levels))
        object.__setattr__(self, "fields_by_path", on_path)
        object.__setattr__(self, "_top_level", frozenset(each.path[0] for each in self.fields))

    @classmethod
    def from_mapping(cls, pattern: Mapping[str, Any]) -> "ShardKeyPattern":
        """Parse a pattern such as ``{"a": 1, "b.c": "hashed"}``; raises as `from_bson`."""
        return cls.from_bson(rawbson.encode_document(pattern))

    @classmethod
    def from_bson(cls, pattern: bytes) -> "ShardKeyPattern":
        """Parse a pattern from a raw BSON document.

        Raises:
            CommandError: BadValue for an empty pattern, a malformed path (or one that is not UTF-8, which MongoDB
                allows), a repeated or a second hashed field, or a value that is neither 1 nor "hashed".
        """
        refuse_repeated_fields(pattern)
        fields = tuple(_parse_fields(pattern))
        if not fields:
            raise CommandError(ErrorCode.BadValue, "Shard key is empty")
        return cls(pattern, fields)

    @property
    def hashed_field(self) -> ShardKeyField | None:
        """The hashed field, if the pattern has one."""
        return next((each for each in self.fields if each.hashed), None)

    @property
    def index_name(self) -> str:
        """Name of an index on it, such as ``a_1_b_hashed``, of whatever type its numbers are."""
        return "_".join(f"{each.name.decode()}_{_HASHED if each.hashed else 1}" for each in self.fields)

    def extract_from_document(self, document: bytes) -> bytes:
        """Build the shard key document of a document, stored or about to be; a missing field is null."""
        top_level = self._index(document)
        elements = []
        for each in self.fields:
            kind, value = each.key_value(document, each.find_in(document, top_level))
            elements.append(rawbson.element(each.name, kind, value))
        return rawbson.from_elements(b"".join(elements))

    def query_of_document(self, document: bytes) -> bytes:
        """Build a query by the ``_id`` and the shard key of a stored document, for simple collation.

        It fixes the whole shard key, so that it can be targeted.
        """
        top_level = self._index(document)
        spans = {each.name: each.find_in(document, top_level) for each in self.fields}
        spans.setdefault(_ID, rawbson.find(document, _ID))
        elements = []
        for name, span in spans.items():
            kind, value = (rawbson.NULL, b"") if span is None else (span[0], document[span[2] : span[3]])
            elements.append(rawbson.element(name, rawbson.OBJECT, rawbson.wrap_value(kind, value, b"$eq")))
        return rawbson.from_elements(b"".join(elements))

    def key_bytes_of_document(self, document: bytes) -> bytes:
        """Return the key bytes of a document, stored or about to be, without building its shard key document."""
        if len(self.fields) == 1:
            only = self.fields[0]
            return only.key_bytes(document, only.find_below(document, rawbson.find(document, only.path[0])))
        top_level = self._index(document)
        return b"".join([each.key_bytes(document, each.find_in(document, top_level)) for each in self.fields])

    def key_bytes(self, key: bytes) -> bytes:
        """Return the key bytes of a shard key document, for example a chunk bound."""
        return encode_key(key)

    def is_shard_key(self, key: bytes) -> bool:
        """Whether ``key`` has a usable value for every field of the pattern, in any order, with dots in the names."""
        found = rawbson.index(key)
        return all(each.name in found and found[each.name][0] != rawbson.ARRAY for each in self.fields)

    def normalize(self, key: bytes) -> bytes | None:
        """Reorder the fields of ``key`` as in the pattern; None if it is not a shard key or has other fields too."""
        found = rawbson.index(key)
        if len(found) != len(self.fields) or not self.is_shard_key(key):
            return None
        return rawbson.from_elements(
            b"".join([key[element:end] for _, element, _, end in (found[each.name] for each in self.fields)])
        )

    def is_valid_bound(self, bound: bytes) -> bool:
        """Whether a chunk may begin or end at ``bound``: all fields in order, and an int64 in a hashed one.

        MinKey and MaxKey, which lie outside the int64s, are allowed in a hashed field too.
        """
        spans = list(rawbson.spans(bound))
        return len(spans) == len(self.fields) and all(
            name == each.name and _is_bound_value(each, span)
            for each, (name, span) in zip(self.fields, spans, strict=True)
        )

    def has_hashes(self, bound: bytes) -> bool:
        """Whether a bound of full keys has an int64, MinKey or MaxKey in a hashed field, if the pattern has one."""
        spans = rawbson.index(bound)
        return all(_is_bound_value(each, spans[each.name]) for each in self.fields if each.hashed)

    def is_valid_split_point(self, key: bytes) -> bool:
        """Whether a chunk may be split at ``key``: a bound with a value that a document may have."""
        return self.is_valid_bound(key) and key not in (self.global_min(), self.global_max())

    def global_min(self) -> bytes:
        """Build the shard key document below all others: MinKey in every field."""
        return self._constant(rawbson.MIN_KEY)

    def global_max(self) -> bytes:
        """Build the shard key document above all others: MaxKey in every field."""
        return self._constant(rawbson.MAX_KEY)

    def global_min_bytes(self) -> bytes:
        """Return the key bytes of `global_min`."""
        return ENCODED_MIN_KEY * len(self.fields)

    def global_max_bytes(self) -> bytes:
        """Return the key bytes of `global_max`."""
        return ENCODED_MAX_KEY * len(self.fields)

    def extend_range_bound(self, bound: bytes, *, upper_inclusive: bool = False) -> bytes:
        """Extend ``bound``, which names the first fields of the pattern, to a full key; else raise BadValue.

        Zones and ``moveRange`` are given in prefixes of the key. The added fields are MinKey, so that the range is
        half-open, or MaxKey where the prefix itself is included.
        """
        names = [name for name, _ in rawbson.spans(bound)]
        expected = [each.name for each in self.fields]
        if names != expected[: len(names)]:
            raise CommandError(
                ErrorCode.BadValue,
                f"The bound {document_text(bound)} is not a prefix of the shard key {document_text(self.document)}",
            )
        kind = rawbson.MAX_KEY if upper_inclusive else rawbson.MIN_KEY
        missing = b"".join([rawbson.element(name, kind, b"") for name in expected[len(names) :]])
        return rawbson.append(bound, missing) if missing else bound

    def is_prefix_of(self, index_key: Mapping[str, Any]) -> bool:
        """Whether an index on ``index_key`` begins with the shard key, hashed where the key is hashed."""
        directions = list(index_key.items())
        return len(directions) >= len(self.fields) and all(
            name.encode() == each.name and (direction == _HASHED if each.hashed else _is_ascending(direction))
            for each, (name, direction) in zip(self.fields, directions, strict=False)
        )

    def is_supported_by_index(self, index: Mapping[str, Any]) -> bool:
        """Whether the index of a ``listIndexes`` entry supports reads of ranges of the key.

        It begins with the shard key, contains every document, orders strings like the key, and is not hidden. It must
        not be multikey either, which its description does not show.
        """
        collation = index.get("collation")
        return (
            self.is_prefix_of(index["key"])
            and not index.get("sparse")
            and not index.get("hidden")
            and "partialFilterExpression" not in index
            and (collation is None or collation.get("locale") == "simple")
        )

    def allows_uniqueness_of(self, index: Mapping[str, Any]) -> bool:
        """Whether an index of this specification is not unique, now or later, or every shard can enforce it."""
        is_unique = index.get("unique") or index.get("prepareUnique")
        return not is_unique or self.is_unique_index_compatible(index["key"])

    def is_unique_index_compatible(self, index_key: Mapping[str, Any]) -> bool:
        """Whether every shard can enforce a unique index on ``index_key`` alone.

        This holds if the index begins with the fields of the shard key, in any direction. Indexes that begin with
        ``_id`` are accepted too; uniqueness across shards is then up to the application.
        """
        names = [name.encode() for name in index_key]
        return names[:1] == [b"_id"] or names[: len(self.fields)] == [each.name for each in self.fields]

    def __str__(self) -> str:
        return document_text(self.document)

    def _index(self, document: bytes) -> dict[bytes, Span]:
        """Index the top-level elements that the paths begin with; ``document`` is walked only as far as needed."""
        wanted = self._top_level
        found: dict[bytes, Span] = {}
        for name, span in rawbson.spans(document):
            if name in wanted and name not in found:
                found[name] = span
                if len(found) == len(wanted):
                    break
        return found

    def _constant(self, kind: int) -> bytes:
        return rawbson.from_elements(b"".join([rawbson.element(each.name, kind, b"") for each in self.fields]))


def refuse_repeated_fields(pattern: bytes) -> None:
    """Raise BadValue for a pattern that has a field twice, as mongod does for an index. Decoding would hide it."""
    names = set()
    for name, _ in rawbson.spans(pattern):
        if name in names:
            raise CommandError(
                ErrorCode.BadValue,
                f"The field '{name.decode(errors='replace')}' appears multiple times in the index key pattern "
                f"{document_text(pattern)}",
            )
        names.add(name)


def _parse_fields(pattern: bytes) -> Iterator[ShardKeyField]:
    hashed_fields = 0
    for name, span in rawbson.spans(pattern):
        text = name.decode(errors="replace")
        if text.encode() != name:
            raise CommandError(ErrorCode.BadValue, f"Field {text} of a shard key is not valid UTF-8")
        _check_path(text)
        direction = rawbson.decode_value(pattern, span)
        hashed = direction == _HASHED
        hashed_fields += hashed
        if hashed_fields > 1 if hashed else not _is_ascending(direction):
            raise CommandError(
                ErrorCode.BadValue,
                f"Shard key {document_text(pattern)} can contain at most one 'hashed' field, and/or multiple "
                f"numerical fields set to a value of 1. Failed to parse field {text}",
            )
        yield ShardKeyField(name, hashed)


def _check_path(path: str) -> None:
    if not path:
        raise CommandError(ErrorCode.BadValue, f"Field {path} is empty")
    parts = path.split(".")
    if not all(parts):
        raise CommandError(ErrorCode.BadValue, f"Field {path} contains empty parts")
    if any(part.startswith("$") for part in parts):
        raise CommandError(ErrorCode.BadValue, f"Field {path} contains parts that start with '$'")


def _is_ascending(direction: object) -> bool:
    """Whether a direction is a number that is 1 when truncated to an int, as mongod does."""
    if isinstance(direction, bson.Decimal128):
        direction = direction.to_decimal()
        return direction.is_finite() and round(direction) == 1
    if isinstance(direction, bool) or not isinstance(direction, int | float):
        return False
    return 1 <= direction < 2


def _is_bound_value(each: ShardKeyField, span: Span) -> bool:
    if each.hashed:
        return span[0] in (rawbson.INT64, rawbson.MIN_KEY, rawbson.MAX_KEY)
    return span[0] != rawbson.ARRAY
