"""BSON timestamps as the unsigned 64-bit integers that they are on the wire, which order as timestamps do."""

from bson.timestamp import Timestamp


def pack_timestamp(timestamp: Timestamp) -> int:
    """Seconds in the high half, increment in the low half."""
    return int(timestamp.time) << 32 | int(timestamp.inc)


def unpack_timestamp(packed: int) -> Timestamp:
    """The reverse of `pack_timestamp`."""
    return Timestamp(packed >> 32, packed & 0xFFFFFFFF)
