"""CRC-32C (Castagnoli), the optional checksum after the sections of an OP_MSG.

Source: MongoDB wire protocol specification, OP_MSG, flag bit 0 ``checksumPresent``.
"""

import google_crc32c


def checksum(data: bytes) -> int:
    """The CRC-32C of ``data`` as an unsigned 32-bit number."""
    return int(google_crc32c.value(data))
