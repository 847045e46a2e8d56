"""Versions of placement: of the chunks of a collection, and of the primary shard of a database.

Every operation between router and shard carries them, so each builds its BSON bytes once. The router appends ready
elements (`shard_version_element`, `database_version_element`) and a shard compares raw bytes before it parses.

**Stale versions** (`StaleError`) are the errors that report stale routing to a router, in the format of MongoDB 6.0's
shards. A read fails with the error as its reply. A write command succeeds and has the error in ``writeErrors``, with
the extra fields inline. In a transaction any command fails, and the whole transaction may be retried.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from struct import Struct
from typing import Any, Final
from uuid import UUID

from bson.binary import Binary
from bson.objectid import ObjectId
from bson.timestamp import Timestamp

from shardwright.sharding.cluster_time import pack_timestamp, unpack_timestamp
from shardwright.wire import rawbson
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import TRANSIENT_TRANSACTION_ERROR, CommandError, missing_field
from shardwright.wire.request import Request

SHARD_VERSION: Final = b"shardVersion"
DATABASE_VERSION: Final = b"databaseVersion"
VERSION_FIELDS: Final = frozenset({SHARD_VERSION, DATABASE_VERSION})
"""Fields that the router adds to a command for a shard; a mongod does not support them."""

# {t: Timestamp, e: ObjectId, v: Timestamp}, in the order of shards of MongoDB 6.0.
_CHUNK_VERSION: Final = Struct("<i3sQ3s12s3sQB")
_CHUNK_VERSION_NAMES: Final = (b"\x11t\0", b"\x07e\0", b"\x11v\0")

# {uuid: UUID, timestamp: Timestamp, lastMod: int32}
_DATABASE_VERSION: Final = Struct("<i6si1s16s11sQ9siB")
_DATABASE_VERSION_NAMES: Final = (b"\x05uuid\0", b"\x11timestamp\0", b"\x10lastMod\0")

_VERSIONS_CACHED: Final = 65536

WRITE_ITEMS: Final[Mapping[str, bytes]] = {"insert": b"documents", "update": b"updates", "delete": b"deletes"}
"""The write commands whose items fail one by one, and the argument with the items."""


@dataclass(frozen=True, slots=True)
class ChunkVersion:
    """The version of a chunk, of the chunks on one shard, or of a whole collection (then the highest of them).

    ``timestamp`` distinguishes incarnations of a collection; versions of different incarnations have no order. The
    major part rises when a chunk changes its shard, the minor part when chunks change in place.
    """

    major: int
    minor: int
    epoch: ObjectId
    timestamp: Timestamp
    _raw: bytes = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        t, e, v = _CHUNK_VERSION_NAMES
        raw = _CHUNK_VERSION.pack(
            _CHUNK_VERSION.size, t, pack_timestamp(self.timestamp), e, self.epoch.binary, v, self.packed, 0
        )
        object.__setattr__(self, "_raw", raw)

    @classmethod
    def from_packed(cls, packed: int, epoch: ObjectId, timestamp: Timestamp) -> "ChunkVersion":
        """Build the version whose major part is the high half of ``packed`` and whose minor part the low half."""
        return cls(packed >> 32, packed & 0xFFFFFFFF, epoch, timestamp)

    @classmethod
    def from_lastmod(cls, lastmod: Timestamp, epoch: ObjectId, timestamp: Timestamp) -> "ChunkVersion":
        """Build the version from the ``lastmod`` of a chunk document."""
        return cls(lastmod.time, lastmod.inc, epoch, timestamp)

    @classmethod
    def from_value(cls, value: Any) -> "ChunkVersion":  # noqa: ANN401 - whatever stood in the message
        """Parse a decoded ``{t, e, v}``, or the array ``[v, e, t]``; raise TypeMismatch."""
        if isinstance(value, Mapping):
            v, e, t = value.get("v"), value.get("e"), value.get("t")
        elif isinstance(value, list) and len(value) == 3:
            v, e, t = value
        else:
            raise CommandError(ErrorCode.TypeMismatch, f"Invalid chunk version {value!r}: expected {{t, e, v}}")
        if not isinstance(v, Timestamp):
            raise _chunk_version_part_error("v", v, "timestamp")
        if not isinstance(e, ObjectId):
            raise _chunk_version_part_error("e", e, "objectId")
        if not isinstance(t, Timestamp):
            raise _chunk_version_part_error("t", t, "timestamp")
        return cls.from_lastmod(v, e, t)

    @classmethod
    def from_span(cls, document: bytes, span: rawbson.Span) -> "ChunkVersion":
        """Parse the version at a span of a message; the same bytes give the same object."""
        kind, _, value_start, value_end = span
        return _parse_chunk_version(kind, document[value_start:value_end])

    @property
    def packed(self) -> int:
        """Both parts in one unsigned 64-bit integer, which has the same order."""
        return self.major << 32 | self.minor

    @property
    def lastmod(self) -> Timestamp:
        """Both parts in the catalog's format."""
        return Timestamp(self.major, self.minor)

    @property
    def raw(self) -> bytes:
        """The BSON document ``{t, e, v}``."""
        return self._raw

    def to_document(self) -> dict[str, Any]:
        """Build the value ``{t, e, v}`` as a mapping."""
        return {"t": self.timestamp, "e": self.epoch, "v": self.lastmod}

    @property
    def is_set(self) -> bool:
        """Whether it differs from 0|0, the version of a shard without chunks."""
        return self.packed > 0

    def is_same_collection(self, other: "ChunkVersion") -> bool:
        """Whether both are of the same incarnation of a collection; the epoch is ignored, as in MongoDB."""
        return self.timestamp == other.timestamp

    def is_older_than(self, other: "ChunkVersion") -> bool:
        """Whether both are comparable and this is the lower one."""
        return self.timestamp == other.timestamp and self.packed < other.packed

    def is_older_or_equal(self, other: "ChunkVersion") -> bool:
        """Whether both are comparable and this is not the higher one."""
        return self.timestamp == other.timestamp and self.packed <= other.packed

    def is_write_compatible_with(self, other: "ChunkVersion") -> bool:
        """Whether an operation routed by ``other`` may run at this version: no chunk has moved in between."""
        return self.major == other.major and self.timestamp == other.timestamp

    def with_major_raised(self) -> "ChunkVersion":
        """Return the next version after a chunk moved."""
        return ChunkVersion(self.major + 1, 0, self.epoch, self.timestamp)

    def with_minor_raised(self, by: int = 1) -> "ChunkVersion":
        """Return the next version after chunks changed in place."""
        return ChunkVersion(self.major, self.minor + by, self.epoch, self.timestamp)

    def __str__(self) -> str:
        return f"{self.major}|{self.minor}||{self.epoch}||Timestamp({self.timestamp.time}, {self.timestamp.inc})"


CONFIG_SHARD: Final = "config"
"""Shard name of the config servers, which are addressed like a shard."""

UNSHARDED: Final = ChunkVersion(0, 0, ObjectId(bytes(12)), Timestamp(0, 0))
"""Version of a collection that is not sharded."""

IGNORED: Final = ChunkVersion(0, 0, ObjectId("00000000ffffffffffffffff"), Timestamp(0xFFFFFFFF, 0xFFFFFFFF))
"""Version that disables the shard version check, for broadcast writes."""


@dataclass(frozen=True, slots=True)
class DatabaseVersion:
    """The version of a database's entry in the catalog; ``last_mod`` rises when its primary shard changes."""

    uuid: UUID
    timestamp: Timestamp
    last_mod: int
    _raw: bytes = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        uuid, timestamp, last_mod = _DATABASE_VERSION_NAMES
        raw = _DATABASE_VERSION.pack(
            _DATABASE_VERSION.size,
            uuid,
            16,
            b"\x04",
            self.uuid.bytes,
            timestamp,
            pack_timestamp(self.timestamp),
            last_mod,
            self.last_mod,
            0,
        )
        object.__setattr__(self, "_raw", raw)

    @classmethod
    def from_value(cls, value: Any) -> "DatabaseVersion":  # noqa: ANN401 - whatever stood in the message
        """Parse a decoded ``{uuid, timestamp, lastMod}``.

        Raises TypeMismatch, or 40414 for a missing field, with the texts of MongoDB's parser.
        """
        if not isinstance(value, Mapping):
            raise _field_type_error("databaseVersion", value, "object")
        for name in ("timestamp", "lastMod"):
            if name not in value:
                raise missing_field(f"DatabaseVersion.{name}")
        uuid, timestamp, last_mod = value.get("uuid"), value["timestamp"], value["lastMod"]
        if isinstance(uuid, Binary) and uuid.subtype == 4 and len(uuid) == 16:
            uuid = UUID(bytes=bytes(uuid))
        if not isinstance(uuid, UUID):
            raise _field_type_error("DatabaseVersion.uuid", uuid, "binData")
        if not isinstance(timestamp, Timestamp):
            raise _field_type_error("DatabaseVersion.timestamp", timestamp, "timestamp")
        if not isinstance(last_mod, int) or isinstance(last_mod, bool):
            raise _field_type_error("DatabaseVersion.lastMod", last_mod, "int")
        return cls(uuid, timestamp, int(last_mod))

    @classmethod
    def from_span(cls, document: bytes, span: rawbson.Span) -> "DatabaseVersion":
        """Parse the version at a span of a message; the same bytes give the same object."""
        kind, _, value_start, value_end = span
        return _parse_database_version(kind, document[value_start:value_end])

    @property
    def raw(self) -> bytes:
        """The BSON document ``{uuid, timestamp, lastMod}``."""
        return self._raw

    def to_document(self) -> dict[str, Any]:
        """Build the value ``{uuid, timestamp, lastMod}`` as a mapping that pymongo encodes."""
        return {"uuid": Binary.from_uuid(self.uuid), "timestamp": self.timestamp, "lastMod": self.last_mod}

    def matches(self, other: "DatabaseVersion") -> bool:
        """Whether both are the same version; the UUID is ignored, as in MongoDB since 5.0."""
        return self.timestamp == other.timestamp and self.last_mod == other.last_mod

    def is_older_than(self, other: "DatabaseVersion") -> bool:
        """Whether ``other`` was written later: a later incarnation, or a later primary shard of the same one."""
        return (pack_timestamp(self.timestamp), self.last_mod) < (pack_timestamp(other.timestamp), other.last_mod)

    def with_last_mod_raised(self) -> "DatabaseVersion":
        """Return the version after the primary shard changed."""
        return DatabaseVersion(self.uuid, self.timestamp, self.last_mod + 1)

    def __str__(self) -> str:
        return f"{self.uuid}|Timestamp({self.timestamp.time}, {self.timestamp.inc})|{self.last_mod}"


@lru_cache(_VERSIONS_CACHED)
def shard_version_element(version: ChunkVersion) -> bytes:
    """Build the element ``shardVersion: {t, e, v}``, ready for `rawbson.append`."""
    return rawbson.element(SHARD_VERSION, rawbson.OBJECT, version.raw)


@lru_cache(_VERSIONS_CACHED)
def database_version_element(version: DatabaseVersion) -> bytes:
    """Build the element ``databaseVersion: {uuid, timestamp, lastMod}``, ready for `rawbson.append`."""
    return rawbson.element(DATABASE_VERSION, rawbson.OBJECT, version.raw)


@lru_cache(_VERSIONS_CACHED)
def _parse_chunk_version(kind: int, value: bytes) -> ChunkVersion:
    if kind == rawbson.OBJECT and len(value) == _CHUNK_VERSION.size:
        _, t, timestamp, e, epoch, v, packed, _ = _CHUNK_VERSION.unpack(value)
        if (t, e, v) == _CHUNK_VERSION_NAMES:
            return ChunkVersion.from_packed(packed, ObjectId(epoch), unpack_timestamp(timestamp))
    return ChunkVersion.from_value(rawbson.decode_value(value, (kind, 0, 0, len(value))))


@lru_cache(_VERSIONS_CACHED)
def _parse_database_version(kind: int, value: bytes) -> DatabaseVersion:
    return DatabaseVersion.from_value(rawbson.decode_value(value, (kind, 0, 0, len(value))))


def _chunk_version_part_error(name: str, value: object, expected: str) -> CommandError:
    return CommandError(
        ErrorCode.TypeMismatch,
        f"Invalid field '{name}' of a chunk version: {rawbson.type_name_of(value)} is not of type {expected}",
    )


def _field_type_error(name: str, value: object, expected: str) -> CommandError:
    return CommandError(
        ErrorCode.TypeMismatch,
        f"BSON field '{name}' is the wrong type '{rawbson.type_name_of(value)}', expected type '{expected}'",
    )


class StaleError(CommandError):
    """A mismatch between the router's version and the shard's.

    Attributes:
        subject: the namespace or the database.
        may_shard_be_stale: whether the shard should refresh before it replies with the error.
    """

    def __init__(self, code: int, message: str, extra: Mapping[str, Any], *, may_shard_be_stale: bool) -> None:
        super().__init__(code, message, extra=extra)
        self.subject: str = extra["ns"] if "ns" in extra else extra["db"]
        self.may_shard_be_stale = may_shard_be_stale


def stale_config(
    namespace: str,
    received: ChunkVersion,
    wanted: ChunkVersion | None,
    shard: str,
    message: str,
    *,
    may_shard_be_stale: bool,
) -> StaleError:
    """Return StaleConfig (13388) for a collection.

    Args:
        wanted: the shard's version; None if it is unknown.
        may_shard_be_stale: see `StaleError`.
    """
    extra: dict[str, Any] = {"ns": namespace, "vReceived": received.to_document()}
    if wanted is not None:
        extra["vWanted"] = wanted.to_document()
    extra["shardId"] = shard
    return StaleError(ErrorCode.StaleConfig, message, extra, may_shard_be_stale=may_shard_be_stale)


def stale_database(
    db: str, received: DatabaseVersion, wanted: DatabaseVersion | None, *, may_shard_be_stale: bool
) -> StaleError:
    """Return StaleDbVersion (249) for a database; ``wanted`` is None if the shard's version is unknown."""
    extra: dict[str, Any] = {"db": db, "vReceived": received.to_document()}
    if wanted is None:
        message = f"No cached info for the database {db}"
    else:
        extra["vWanted"] = wanted.to_document()
        message = f"dbVersion mismatch for database {db}"
    return StaleError(ErrorCode.StaleDbVersion, message, extra, may_shard_be_stale=may_shard_be_stale)


def stale_reply(request: Request, error: StaleError, gossip: Mapping[str, Any]) -> dict[str, Any]:
    """Return the reply to a stale write outside transactions, with the error for its items.

    Args:
        gossip: the times after which the router has to read the catalog in order to see at least the shard's state.

    Raises:
        CommandError: the same error for all other requests, with the label that it needs in a transaction.
    """
    items = WRITE_ITEMS.get(request.name)
    extra = {**error.extra, **gossip}
    if b"autocommit" in request.fields:
        raise CommandError(error.code, error.message, labels=(TRANSIENT_TRANSACTION_ERROR,), extra=extra)
    if items is None:
        raise CommandError(error.code, error.message, extra=extra)
    count = len(request.documents(items))
    if request.get(b"ordered", True):
        count = min(count, 1)
    reply: dict[str, Any] = {"n": 0, "writeErrors": [write_error(index, error) for index in range(count)]}
    if request.name == "update":
        reply["nModified"] = 0
    reply["ok"] = 1.0
    reply.update(gossip)
    return reply


def write_error(index: int, error: CommandError) -> dict[str, Any]:
    """Return one item of ``writeErrors``; only the first of several equal ones has the message."""
    return {"index": index, "code": error.code, "errmsg": "" if index else error.message, **error.extra}
