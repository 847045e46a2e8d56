"""CRC-32C against the published check values."""

import pytest

from shardwright.wire.message import checksum


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", 0),
        (b"123456789", 0xE3069283),  # the check value in the CRC catalogue
        (bytes(32), 0x8A9136AA),  # RFC 3720, B.4
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
    ],
)
def test_checksum_has_the_published_values(data: bytes, expected: int) -> None:
    assert checksum(data) == expected
