"""BSON timestamps as unsigned 64-bit integers in their wire format, which sort like timestamps."""

from bson.timestamp import Timestamp


def pack_timestamp(timestamp: Timestamp) -> int:
    """Pack seconds into the high half, increment into the low half."""
    return int(timestamp.time) << 32 | int(timestamp.inc)


def unpack_timestamp(packed: int) -> Timestamp:
    """Unpack the result of `pack_timestamp`."""
    return Timestamp(packed >> 32, packed & 0xFFFFFFFF)
