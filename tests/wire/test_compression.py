"""OP_COMPRESSED: round trips, bounds, damage."""

import zlib
from struct import pack, pack_into

import cramjam
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.wire.compression import COMPRESSORS, Compressor, compress, decompress, negotiate
from shardwright.wire.errors import LocalProtocolError, RemoteProtocolError
from shardwright.wire.frames import OP_COMPRESSED, OP_MSG
from shardwright.wire.limits import MESSAGE_BYTES_MAX

FRAME = pack("<iiii", 16 + 300, 7, 3, OP_MSG) + b"shard" * 60


def compressed_frame(payload: bytes, *, size: int, compressor: int, opcode: int = OP_MSG) -> bytes:
    """An OP_COMPRESSED frame with arbitrary fields, as from a malicious peer."""
    return pack("<iiiiiiB", 25 + len(payload), 7, 3, OP_COMPRESSED, opcode, size, compressor) + payload


def deflated(data: bytes, compressor: Compressor) -> bytes:
    match compressor:
        case Compressor.NOOP:
            return data
        case Compressor.SNAPPY:
            return bytes(cramjam.snappy.compress_raw(data))
        case Compressor.ZLIB:
            return zlib.compress(data)
        case Compressor.ZSTD:
            return bytes(cramjam.zstd.compress(data))


@pytest.mark.parametrize("compressor", Compressor)
@given(payload=st.binary(max_size=2000))
def test_decompress_restores_the_frame(compressor: Compressor, payload: bytes) -> None:
    frame = pack("<iiii", 16 + len(payload), 11, 12, OP_MSG) + payload
    packed = compress(frame, compressor)
    assert int.from_bytes(packed[:4], "little") == len(packed)
    assert decompress(packed) == (frame, compressor)


@pytest.mark.parametrize("compressor", Compressor)
def test_decompress_refuses_every_truncation(compressor: Compressor) -> None:
    packed = compress(FRAME, compressor)
    for length in range(len(packed)):
        cut = bytearray(packed[:length])
        if length >= 4:
            pack_into("<i", cut, 0, length)
        with pytest.raises(RemoteProtocolError):
            decompress(bytes(cut))


@pytest.mark.parametrize("compressor", Compressor)
@pytest.mark.parametrize("difference", [-1, 1, -300])
def test_decompress_refuses_a_size_other_than_announced(compressor: Compressor, difference: int) -> None:
    data = FRAME[16:]
    packed = compressed_frame(deflated(data, compressor), size=len(data) + difference, compressor=compressor)
    with pytest.raises(RemoteProtocolError):
        decompress(packed)


@pytest.mark.parametrize("compressor", [Compressor.SNAPPY, Compressor.ZLIB, Compressor.ZSTD])
def test_decompress_does_not_inflate_a_bomb(compressor: Compressor) -> None:
    bomb = deflated(bytes(MESSAGE_BYTES_MAX * 2), compressor)
    for size in (100, MESSAGE_BYTES_MAX - 16):
        with pytest.raises(RemoteProtocolError):
            decompress(compressed_frame(bomb, size=size, compressor=compressor))


@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        (compressed_frame(b"", size=MESSAGE_BYTES_MAX - 15, compressor=2), "more than a message may have"),
        (compressed_frame(b"", size=-1, compressor=2), "more than a message may have"),
        (compressed_frame(b"x", size=1, compressor=4), "no compressor"),
        (compressed_frame(b"x", size=1, compressor=255), "no compressor"),
        (compressed_frame(b"x", size=1, compressor=0, opcode=OP_COMPRESSED), "inside a compressed message"),
        (compressed_frame(zlib.compress(b"x") + b"y", size=1, compressor=2), "behind its end"),
        (compressed_frame(b"x", size=1, compressor=0) + b"y", "not an OP_COMPRESSED"),
        (FRAME, "not an OP_COMPRESSED"),
    ],
)
def test_decompress_refuses_malformed_frames(frame: bytes, reason: str) -> None:
    with pytest.raises(RemoteProtocolError, match=reason):
        decompress(frame)


@given(
    payload=st.binary(max_size=200),
    size=st.integers(min_value=-(2**31), max_value=2**31 - 1),
    compressor=st.integers(min_value=0, max_value=255),
    tail=st.binary(max_size=3),
)
def test_decompress_accepts_any_bytes_or_raises(payload: bytes, size: int, compressor: int, tail: bytes) -> None:
    try:
        frame, _ = decompress(compressed_frame(payload, size=size, compressor=compressor) + tail)
    except RemoteProtocolError:
        return
    assert len(frame) == size + 16


def test_compress_refuses_a_compressed_frame() -> None:
    with pytest.raises(LocalProtocolError):
        compress(compress(FRAME, Compressor.ZLIB), Compressor.ZLIB)
    with pytest.raises(LocalProtocolError):
        compress(b"short", Compressor.ZLIB)


@pytest.mark.parametrize(
    ("client", "ours", "expected"),
    [
        ([], tuple(COMPRESSORS), []),
        (["zlib", "snappy"], ("snappy", "zstd", "zlib"), ["zlib", "snappy"]),
        (["brotli", "zstd"], ("snappy", "zstd", "zlib"), ["zstd"]),
        (["zstd", "zstd"], ("zstd",), ["zstd"]),
        (["noop"], ("snappy",), []),
        (["zlib"], (), []),
    ],
)
def test_negotiate_keeps_the_clients_order(client: list[str], ours: tuple[str, ...], expected: list[str]) -> None:
    assert negotiate(client, ours) == expected
