"""Keys of many values of one type at once: those of `key_order.encode_value`, without a call for each number.

Only types whose values all have the same size have columns, so that `struct` reads a value from a known position.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from struct import Struct
from typing import Any, Final

from shardwright.sharding.key_order import encoder_of
from shardwright.sharding.number_order import EXACT_INTEGERS, POSITIVE_RANK, pack_positive
from shardwright.wire.rawbson import BOOL, DATE, DOUBLE, INT32, INT64, OBJECT_ID, TIMESTAMP


@dataclass(frozen=True, slots=True)
class KeyColumn:
    """Values of one type.

    Attributes:
        code: how `struct` reads one.
        size: of one, in bytes.
        encode: the keys of values that were read in this way.
    """

    code: str
    size: int
    encode: Callable[[Sequence[Any]], list[bytes]]


def _numbers(kind: int, code: str) -> KeyColumn:
    encode_any, layout = encoder_of(kind), Struct(f"<{code}")
    pack, size = layout.pack, layout.size

    def encode(values: Sequence[Any]) -> list[bytes]:
        # The others are zero, negative, not a number, or not sure to be exact.
        return [
            pack_positive(POSITIVE_RANK, value) if 0 < value <= EXACT_INTEGERS else encode_any(pack(value), 0, size)
            for value in values
        ]

    return KeyColumn(code, size, encode)


def _bytes(kind: int, size: int) -> KeyColumn:
    encode_one = encoder_of(kind)
    return KeyColumn(f"{size}s", size, lambda values: [encode_one(value, 0, size) for value in values])


KEY_COLUMNS: Final = {
    INT32: _numbers(INT32, "i"),
    INT64: _numbers(INT64, "q"),
    DOUBLE: _numbers(DOUBLE, "d"),
    DATE: _bytes(DATE, 8),
    TIMESTAMP: _bytes(TIMESTAMP, 8),
    OBJECT_ID: _bytes(OBJECT_ID, 12),
    BOOL: _bytes(BOOL, 1),
}
"""By type."""
