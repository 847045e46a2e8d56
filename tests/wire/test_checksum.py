"""CRC-32C against the published check values, and on frames."""

import pytest

from shardwright.wire.checksum import append_checksum, checksum, is_checksum_valid


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


def test_a_frame_with_its_checksum_is_valid_and_with_any_bit_flipped_is_not() -> None:
    frame = append_checksum(b"a message")
    assert is_checksum_valid(frame)
    for position in range(len(frame)):
        damaged = bytearray(frame)
        damaged[position] ^= 1
        assert not is_checksum_valid(bytes(damaged))
