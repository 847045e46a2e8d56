"""Chunks: contiguous ranges of shard key values, their owners, and their documents in the catalog.

Bounds are the raw BSON documents of the catalog. A `ShardKeyPattern` encodes them into byte strings with the order of
the bounds; only code that compares bounds needs the pattern. A malformed chunk document raises NoSuchKey or
TypeMismatch.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from struct import Struct
from struct import error as struct_error
from typing import Any, Final, NamedTuple
from uuid import UUID

from bson.binary import Binary
from bson.objectid import ObjectId
from bson.raw_bson import RawBSONDocument
from bson.timestamp import Timestamp

from shardwright.sharding.bson_text import document_text
from shardwright.sharding.cluster_time import pack_timestamp
from shardwright.sharding.document_fields import documents, optional, required, required_uuid
from shardwright.sharding.shard_key import ShardKeyPattern
from shardwright.sharding.versions import ChunkVersion
from shardwright.wire import rawbson
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError

_unpack_uint64: Final = Struct("<Q").unpack_from

# Servers write the fields of a chunk in one order. All fields up to the lower bound have a fixed size.
_read_catalog_head: Final = Struct("<5s12x11s16x5si").unpack_from
_read_cache_head: Final = Struct("<5si").unpack_from
_CATALOG_HEAD: Final = [b"\x07_id\0", b"\x05uuid\0\x10\0\0\0\x04", b"\x03min\0"]
_CACHE_HEAD: Final = [b"\x03_id\0"]
_CATALOG_HEAD_BYTES: Final = 49
_CACHE_HEAD_BYTES: Final = 5
_read_max: Final = Struct("<5si").unpack_from
_read_shard: Final = Struct("<7si").unpack_from
_read_rest: Final = Struct("<9sQ9si").unpack_from
_read_rest_with_jumbo: Final = Struct("<9sQ7sx9si").unpack_from
_REST_BYTES: Final = 26
_JUMBO: Final = b"\x08jumbo\0"


@dataclass(frozen=True, slots=True)
class ChunkRange:
    """A half-open range of shard key values: it includes ``min`` and excludes ``max``.

    The bounds are BSON documents with all fields of the shard key; ``min_key`` and ``max_key`` are their
    `ShardKeyPattern.key_bytes`.
    """

    min: bytes
    max: bytes
    min_key: bytes
    max_key: bytes

    @classmethod
    def of(cls, pattern: ShardKeyPattern, min_document: bytes, max_document: bytes) -> "ChunkRange":
        """Build the range between two bounds; raise BadValue if it is empty."""
        min_key, max_key = pattern.key_bytes(min_document), pattern.key_bytes(max_document)
        if min_key >= max_key:
            raise CommandError(
                ErrorCode.BadValue,
                f"Illegal chunk range: [{document_text(min_document)}, {document_text(max_document)})",
            )
        return cls(min_document, max_document, min_key, max_key)

    def contains_key(self, key: bytes) -> bool:
        """Whether an encoded shard key value lies in the range."""
        return self.min_key <= key < self.max_key

    def contains(self, other: "ChunkRange") -> bool:
        """Whether ``other`` lies completely inside."""
        return self.min_key <= other.min_key and other.max_key <= self.max_key

    def overlaps(self, other: "ChunkRange") -> bool:
        """Whether some key value lies in both."""
        return self.min_key < other.max_key and other.min_key < self.max_key

    def is_same_as(self, other: "ChunkRange") -> bool:
        """Whether both contain the same key values, even if their bounds are written differently (``1`` or ``1.0``)."""
        return self.min_key == other.min_key and self.max_key == other.max_key

    def to_document(self) -> dict[str, Any]:
        """Build ``{min, max}``, as used in commands and the collections of migrations."""
        return {"min": rawbson.raw_document(self.min), "max": rawbson.raw_document(self.max)}

    def __str__(self) -> str:
        return f"[{document_text(self.min)}, {document_text(self.max)})"


class ChunkHistory(NamedTuple):
    """Placement of a chunk on ``shard`` from ``valid_after`` until the next newer entry."""

    valid_after: Timestamp
    shard: str


class ChunkPlacement(NamedTuple):
    """The routing fields of one chunk document, taken from the raw bytes.

    ``version`` is packed as in `ChunkVersion.packed`, and so are the times in ``history``, which is newest first.
    """

    min: bytes
    max: bytes
    shard: str
    version: int
    history: tuple[tuple[int, str], ...]

    @classmethod
    def from_raw(cls, document: bytes, start: int = 0, *, is_cached: bool = False) -> "ChunkPlacement":
        """Read the chunk document that begins at ``start``.

        If ``is_cached``, it is from a shard's cache rather than ``config.chunks``: the lower bound is the ``_id``.
        """
        fields = rawbson.index(document, start)
        min_document = _raw_field(document, fields, b"_id" if is_cached else b"min", rawbson.OBJECT)
        max_document = _raw_field(document, fields, b"max", rawbson.OBJECT)
        shard = _shard_name(_raw_field(document, fields, b"shard", rawbson.STRING)[4:-1])
        version = _unpack_uint64(_raw_field(document, fields, b"lastmod", rawbson.TIMESTAMP))[0]
        history = _read_history(_raw_field(document, fields, b"history", rawbson.ARRAY)) if b"history" in fields else ()
        return cls(min_document, max_document, shard, version, history)


@dataclass(frozen=True, slots=True)
class Chunk:
    """One document of ``config.chunks``.

    ``jumbo`` is ``None`` where the document has no such field, as in a collection that was just sharded.
    """

    id: ObjectId
    uuid: UUID
    min: bytes
    max: bytes
    shard: str
    version: ChunkVersion
    history: tuple[ChunkHistory, ...] = ()
    jumbo: bool | None = None

    @classmethod
    def from_document(cls, document: Mapping[str, Any], *, epoch: ObjectId, timestamp: Timestamp) -> "Chunk":
        """Read a decoded chunk document of the collection of the given epoch and timestamp."""
        return cls(
            id=required(document, "_id", ObjectId),
            uuid=required_uuid(document, "uuid"),
            min=_encoded(document, "min"),
            max=_encoded(document, "max"),
            shard=required(document, "shard", str),
            version=ChunkVersion.from_lastmod(required(document, "lastmod", Timestamp), epoch, timestamp),
            history=tuple(
                ChunkHistory(required(entry, "validAfter", Timestamp), required(entry, "shard", str))
                for entry in documents(document, "history")
            ),
            jumbo=optional(document, "jumbo", bool),
        )

    def to_document(self) -> dict[str, Any]:
        """Build the document as MongoDB 6.0 writes it."""
        document: dict[str, Any] = {
            "_id": self.id,
            "uuid": Binary.from_uuid(self.uuid),
            "min": rawbson.raw_document(self.min),
            "max": rawbson.raw_document(self.max),
            "shard": self.shard,
            "lastmod": self.version.lastmod,
        }
        if self.jumbo is not None:
            document["jumbo"] = self.jumbo
        document["history"] = [{"validAfter": entry.valid_after, "shard": entry.shard} for entry in self.history]
        return document

    @property
    def placement(self) -> ChunkPlacement:
        """The routing fields."""
        history = tuple((pack_timestamp(entry.valid_after), entry.shard) for entry in self.history)
        return ChunkPlacement(self.min, self.max, self.shard, self.version.packed, history)

    def range(self, pattern: ShardKeyPattern) -> ChunkRange:
        """Return the bounds in comparable form."""
        return ChunkRange.of(pattern, self.min, self.max)

    def with_version(self, version: ChunkVersion) -> "Chunk":
        """Return the same chunk with another version."""
        return replace(self, version=version)


def read_placements(
    documents: Iterable[bytes], start: int = 0, end: int = 0, *, is_cached: bool = False
) -> Iterator[ChunkPlacement]:
    """Read many documents like `ChunkPlacement.from_raw`.

    Documents with the servers' usual order of fields are read without an index, because tables are built from millions
    of chunks. Each chunk document begins at ``start`` and is followed by ``end`` bytes.
    """
    read_head, head = (_read_cache_head, _CACHE_HEAD) if is_cached else (_read_catalog_head, _CATALOG_HEAD)
    head_start = start + 4
    min_start = head_start + (_CACHE_HEAD_BYTES if is_cached else _CATALOG_HEAD_BYTES)
    for document in documents:
        try:
            *names, size = read_head(document, head_start)
            max_start = min_start + size + 5
            max_name, size = _read_max(document, max_start - 5)
            max_end = max_start + size
            shard_name, size = _read_shard(document, max_end)
            shard_start = max_end + 11
            shard_end = shard_start + size
            lastmod_name, version, history_name, size = _read_rest(document, shard_end)
            history_start = shard_end + _REST_BYTES
            if history_name.startswith(_JUMBO):
                lastmod_name, version, _, history_name, size = _read_rest_with_jumbo(document, shard_end)
                history_start += len(_JUMBO) + 1
        except struct_error:  # the document ends
            history_name = b""
        history_end = len(document) - end - 1
        if (
            history_name != b"\x04history\0"
            or lastmod_name != b"\x11lastmod\0"
            or shard_name != b"\x02shard\0"
            or max_name != b"\x03max\0"
            or names != head
            or history_start + size != history_end
        ):
            yield ChunkPlacement.from_raw(document, start, is_cached=is_cached)
            continue
        yield ChunkPlacement(
            document[min_start : max_start - 5],
            document[max_start:max_end],
            _shard_name(document[shard_start : shard_end - 1]),
            version,
            _read_history(document[history_start:history_end]),
        )


@lru_cache(4096)
def _shard_name(name: bytes) -> str:
    return name.decode()


@lru_cache(4096)  # the chunks of a collection that was sharded at once share one history
def _read_history(array: bytes) -> tuple[tuple[int, str], ...]:
    try:
        entries = rawbson.array_documents(array, (rawbson.ARRAY, 0, 0, len(array)))
    except rawbson.InvalidBSONError as error:
        raise _wrong_type("history") from error
    return tuple(_read_history_entry(entry) for entry in entries)


def _read_history_entry(document: bytes) -> tuple[int, str]:
    fields = rawbson.index(document)
    valid_after = _unpack_uint64(_raw_field(document, fields, b"validAfter", rawbson.TIMESTAMP))[0]
    return valid_after, _shard_name(_raw_field(document, fields, b"shard", rawbson.STRING)[4:-1])


def _raw_field(document: bytes, fields: Mapping[bytes, rawbson.Span], name: bytes, kind: int) -> bytes:
    span = fields.get(name)
    if span is None:
        raise _missing(name.decode())
    if span[0] != kind:
        raise _wrong_type(name.decode())
    return document[span[2] : span[3]]


def _wrong_type(name: str) -> CommandError:
    return CommandError(ErrorCode.TypeMismatch, f'"{name}" had the wrong type in a chunk document')


def _missing(name: str) -> CommandError:
    return CommandError(ErrorCode.NoSuchKey, f'Missing expected field "{name}" in a chunk document')


def _encoded(document: Mapping[str, Any], name: str) -> bytes:
    bound = required(document, name, Mapping)
    return bytes(bound.raw) if isinstance(bound, RawBSONDocument) else rawbson.encode_document(bound)
