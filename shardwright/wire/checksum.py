"""CRC-32C (Castagnoli), the optional checksum after the sections of an OP_MSG.

Source: MongoDB wire protocol specification, OP_MSG, flag bit 0 ``checksumPresent``.
"""

from typing import Final

import google_crc32c

CHECKSUM_BYTES: Final = 4


def checksum(data: bytes) -> int:
    """The CRC-32C of ``data`` as an unsigned 32-bit number."""
    return int(google_crc32c.value(data))


def append_checksum(frame: bytes) -> bytes:
    """``frame`` followed by its checksum.

    The caller has already counted these four bytes in the frame's ``messageLength`` and set ``checksumPresent``, since
    the checksum covers the header too.
    """
    return frame + checksum(frame).to_bytes(CHECKSUM_BYTES, "little")


def is_checksum_valid(frame: bytes) -> bool:
    """Whether the last four bytes of a whole frame are the checksum of all bytes before them."""
    return int.from_bytes(frame[-CHECKSUM_BYTES:], "little") == checksum(frame[:-CHECKSUM_BYTES])
