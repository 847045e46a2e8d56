"""Where chunks of a hashed shard key are cut before there is any data."""

from struct import Struct
from typing import Final

from shardwright.sharding.shard_key import ShardKeyPattern
from shardwright.wire import rawbson

_INT64_MAX: Final = (1 << 63) - 1
_pack_int64: Final = Struct("<q").pack


def hashed_split_points(
    pattern: ShardKeyPattern, chunk_count: int, prefix: bytes = rawbson.EMPTY_DOCUMENT
) -> list[bytes]:
    """The bounds between ``chunk_count`` chunks that share the hash values evenly, in order.

    They lie symmetrically around zero, at the very values at which MongoDB cuts.

    Args:
        pattern: a shard key with a hashed field.
        chunk_count: at least 1.
        prefix: values of the fields before the hashed one; the fields behind it begin at MinKey.
    """
    interval = _INT64_MAX // chunk_count * 2
    first = 0 if chunk_count % 2 == 0 else interval // 2
    positive = [first + n * interval for n in range(chunk_count // 2)]
    values = sorted({sign * value for value in positive for sign in (-1, 1)})
    return [_bound(pattern, prefix, value) for value in values]


def _bound(pattern: ShardKeyPattern, prefix: bytes, value: int) -> bytes:
    names = [each.name for each in pattern.fields]
    hashed = next(n for n, each in enumerate(pattern.fields) if each.hashed)
    elements = rawbson.element(names[hashed], rawbson.INT64, _pack_int64(value))
    elements += b"".join([rawbson.element(name, rawbson.MIN_KEY, b"") for name in names[hashed + 1 :]])
    return rawbson.append(prefix, elements)
