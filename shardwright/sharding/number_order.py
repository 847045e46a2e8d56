"""Numbers of BSON's four numeric types as byte strings that compare by exact value.

The encoding of a positive number ``v`` is the greatest double that is not above ``v``, as its eight big-endian bytes
(positive doubles compare like these), followed by ``0x00`` if that double is ``v``, or else by ``0x01`` and the exact
decimal form of ``v``: its decimal exponent and its digits. Only large int64s and Decimal128s have the second part, and
equal values of both types share it. A negative number is the encoding of its magnitude with every bit inverted. Zero,
of either sign, counts as positive. NaNs are all equal and come first.

Each of the three forms begins with its own rank byte, which `sharding.key_order` places in the order of all types.
"""

import math
from decimal import Decimal
from struct import Struct
from typing import Final

from bson.decimal128 import Decimal128

NAN: Final = b"\x28"
NEGATIVE: Final = b"\x29"
POSITIVE_RANK: Final = 0x2A
_POSITIVE: Final = bytes((POSITIVE_RANK,))

_INVERTED: Final = bytes(255 - byte for byte in range(256))

_unpack_int32 = Struct("<i").unpack_from
_unpack_int64 = Struct("<q").unpack_from
_unpack_double = Struct("<d").unpack_from
pack_positive = Struct(">Bdx").pack  # rank, double, and the zero byte that says it is exact
_pack_exact = Struct(">dx").pack
_pack_approximate = Struct(">dBH").pack  # double, the byte that says it is not exact, decimal exponent

NUMBERS_MIN: Final = NEGATIVE + _pack_exact(math.inf).translate(_INVERTED)
"""The encoding of the lowest number, minus infinity; NaN alone is below."""
NUMBERS_END: Final = bytes((POSITIVE_RANK + 1,))
"""Behind the encodings of all numbers."""

_INEXACT: Final = 1
_DECIMAL_EXPONENT_BIAS: Final = 8192  # decimal exponents reach from -6176 to 6144

EXACT_INTEGERS: Final = 1 << 53
_DOUBLE_MAX: Final = math.ldexp(1.0 - 2.0**-53, 1024)


def encode_int32(document: bytes, start: int, _end: int) -> bytes:
    """The order-preserving bytes of the int32 at ``start``."""
    value = _unpack_int32(document, start)[0]
    if value >= 0:
        return pack_positive(POSITIVE_RANK, value)
    return NEGATIVE + _pack_exact(-value).translate(_INVERTED)


def encode_int64(document: bytes, start: int, _end: int) -> bytes:
    """The order-preserving bytes of the int64 at ``start``."""
    value = _unpack_int64(document, start)[0]
    if 0 <= value <= EXACT_INTEGERS:
        return pack_positive(POSITIVE_RANK, value)
    if -EXACT_INTEGERS <= value < 0:
        return NEGATIVE + _pack_exact(-value).translate(_INVERTED)
    return _encode_large_integer(value)


def encode_double(document: bytes, start: int, _end: int) -> bytes:
    """The order-preserving bytes of the double at ``start``."""
    value = _unpack_double(document, start)[0]
    if value > 0:
        return pack_positive(POSITIVE_RANK, value)
    if value < 0:
        return NEGATIVE + _pack_exact(-value).translate(_INVERTED)
    if value == 0:
        return pack_positive(POSITIVE_RANK, 0.0)
    return NAN


def encode_decimal128(document: bytes, start: int, end: int) -> bytes:
    """The order-preserving bytes of the Decimal128 at ``start``."""
    value = Decimal128.from_bid(document[start:end]).to_decimal()
    if value.is_nan():
        return NAN
    if value.is_infinite():
        if value > 0:
            return pack_positive(POSITIVE_RANK, math.inf)
        return NUMBERS_MIN
    return _encode_finite(value)


def _encode_large_integer(value: int) -> bytes:
    """As `_encode_finite`, quickly: hashes are large integers, and hashed keys are frequent."""
    magnitude = abs(value)
    below = float(magnitude)
    exact = int(below)
    if exact == magnitude:
        encoding = _pack_exact(below)
    else:
        if exact > magnitude:
            below = math.nextafter(below, 0.0)
        digits = b"%d" % magnitude
        encoding = _pack_inexact(below, digits, len(digits) - 1)
    return _POSITIVE + encoding if value > 0 else NEGATIVE + encoding.translate(_INVERTED)


def _encode_finite(value: Decimal) -> bytes:
    if value < 0:
        return NEGATIVE + _encode_magnitude(value.copy_negate()).translate(_INVERTED)
    return _POSITIVE + _encode_magnitude(value)


def _encode_magnitude(value: Decimal) -> bytes:
    if not value:  # a zero, or a -0, of any exponent
        return _pack_exact(0.0)
    below = float(value)
    if math.isinf(below):
        below = _DOUBLE_MAX
    if below > value:  # Python compares floats and Decimals exactly
        below = math.nextafter(below, 0.0)
    if below == value:
        return _pack_exact(below)
    return _pack_inexact(below, "".join(map(str, value.as_tuple().digits)).encode(), value.adjusted())


def _pack_inexact(below: float, digits: bytes, exponent: int) -> bytes:
    """The double below a value, and the value itself: its decimal exponent and its digits, which a zero byte ends."""
    return _pack_approximate(below, _INEXACT, exponent + _DECIMAL_EXPONENT_BIAS) + digits.rstrip(b"0") + b"\0"
