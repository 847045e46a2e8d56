"""One field of a shard key pattern: its path, and finding its value in a document.

The paths of shard keys do not look into arrays: an array at the end of a path or anywhere on it is refused.
"""

from dataclasses import dataclass, field
from struct import Struct

from shardwright.sharding.hashing import hash_value
from shardwright.sharding.key_order import ENCODED_NULL, Encoder, encode_value, encoder_of
from shardwright.sharding.number_order import encode_int64
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
        hashed: whether the key holds the hash of the value instead of the value.
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
        """Where the field's value lies in ``document``; None if it is missing.

        Args:
            document: the whole document.
            top_level: its top-level elements, at least the one that the path begins with.

        Raises:
            CommandError: ShardKeyNotFound for an array on the path, Overflow for a value nested too deep.
        """
        return self.find_below(document, top_level.get(self.path[0]))

    def find_below(self, document: bytes, span: Span | None) -> Span | None:
        """As `find_in`, given the element that the path begins with, if there is one."""
        if span is not None and len(self.path) > 1:
            span = descend(document, span, self.path[1:])
        if span is not None and span[0] in _NESTING:
            if span[0] == rawbson.ARRAY:
                raise array_in_shard_key()
            refuse_deep_nesting(document, span)
        return span

    def key_value(self, document: bytes, span: Span | None) -> tuple[int, bytes]:
        """Type and raw value in the shard key for a found value (null where there is none)."""
        if self.hashed:
            return rawbson.INT64, _pack_int64(self.hash_of(document, span))
        if span is None:
            return rawbson.NULL, b""
        return span[0], document[span[2] : span[3]]

    def key_bytes(self, document: bytes, span: Span | None) -> bytes:
        """The order-preserving bytes of what `key_value` gives."""
        if self.hashed:
            return encode_int64(_pack_int64(self.hash_of(document, span)), 0, 8)
        return ENCODED_NULL if span is None else encode_value(document, span)

    def encoder_for(self, kind: int) -> Encoder:
        """The encoder of found values of one type, with the same result as `key_bytes`."""
        if not self.hashed:
            return encoder_of(kind)
        return lambda document, start, end: self.key_bytes(document, (kind, start, start, end))

    @staticmethod
    def hash_of(document: bytes, span: Span | None) -> int:
        """The hash of a found value; a missing one hashes as null."""
        return hash_value(document, span or _NULL_SPAN)


def array_in_shard_key() -> CommandError:
    """MongoDB's error for a document with an array on a path of the shard key."""
    return CommandError(ErrorCode.ShardKeyNotFound, "Shard key cannot contain array values or array descendants.")


def refuse_deep_nesting(document: bytes, span: Span) -> None:
    """Raise the Overflow of mongod for a value nested so deep that walking it would not be safe."""
    if span[0] in _NESTING and rawbson.depth_exceeds(document, NESTING_LEVELS_MAX, span[2]):
        raise CommandError(ErrorCode.Overflow, "BSONObj exceeds maximum nested object depth")


def descend(document: bytes, span: Span, path: tuple[bytes, ...]) -> Span | None:
    """The value at ``path`` below the one at ``span``, or the first array on the way; None if there is none."""
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
