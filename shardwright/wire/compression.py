"""OP_COMPRESSED: a message that contains another one, compressed with a compressor negotiated by ``hello``.

Input and output are complete frames. The announced size is checked before decompression and bounds its output, so a
small frame cannot make a daemon allocate more than the maximum message size.

Specified in MongoDB's driver specification "Wire Compression".
"""

import zlib
from collections.abc import Iterable, Sequence
from enum import IntEnum
from struct import Struct
from typing import Final

import cramjam

from shardwright.wire.errors import LocalProtocolError, RemoteProtocolError
from shardwright.wire.frames import HEADER_BYTES, OP_COMPRESSED
from shardwright.wire.limits import MESSAGE_BYTES_MAX

_HEADER = Struct("<iiii")
_PREFIX = Struct("<iiiiiiB")  # the header, then originalOpcode, uncompressedSize, compressorId


class Compressor(IntEnum):
    """A compressor and its number in the ``compressorId`` byte."""

    NOOP = 0
    SNAPPY = 1
    ZLIB = 2
    ZSTD = 3


COMPRESSORS: Final[dict[str, Compressor]] = {
    "snappy": Compressor.SNAPPY,
    "zstd": Compressor.ZSTD,
    "zlib": Compressor.ZLIB,
}
"""The compressors by the names that ``hello`` uses, in MongoDB's default order of preference."""


def negotiate(client: Iterable[str], ours: Sequence[str] = tuple(COMPRESSORS)) -> list[str]:
    """Return the server's ``compression`` field: the client's compressors that it supports, in the client's order.

    The first one is used. If the list is empty, the field is omitted.
    """
    return [name for name in dict.fromkeys(client) if name in ours and name in COMPRESSORS]


def compress(frame: bytes, compressor: Compressor) -> bytes:
    """Wrap ``frame`` into an OP_COMPRESSED frame.

    Raises:
        LocalProtocolError: ``frame`` is itself compressed, or too short to be a frame.
    """
    if len(frame) < HEADER_BYTES:
        raise LocalProtocolError("a message shorter than its header")
    _, request_id, response_to, opcode = _HEADER.unpack_from(frame)
    if opcode == OP_COMPRESSED:
        raise LocalProtocolError("a compressed message is not compressed again")
    payload = frame[HEADER_BYTES:]
    packed = _deflate(payload, compressor)
    return (
        _PREFIX.pack(
            _PREFIX.size + len(packed), request_id, response_to, OP_COMPRESSED, opcode, len(payload), compressor
        )
        + packed
    )


def announced_bytes(frame: bytes) -> int:
    """Return the uncompressed size that an OP_COMPRESSED frame announces; 0 if the frame is too short."""
    return max(0, _PREFIX.unpack_from(frame)[5]) if len(frame) >= _PREFIX.size else 0


def decompress(frame: bytes) -> tuple[bytes, Compressor]:
    """Unpack an OP_COMPRESSED frame; return the frame inside and its compressor.

    Raises:
        RemoteProtocolError: it is malformed, exceeds the maximum message size, or differs from the announced size.
    """
    if len(frame) < _PREFIX.size:
        raise RemoteProtocolError("an OP_COMPRESSED message shorter than its header")
    length, request_id, response_to, outer_opcode, opcode, size, compressor_id = _PREFIX.unpack_from(frame)
    if outer_opcode != OP_COMPRESSED or length != len(frame):
        raise RemoteProtocolError("not an OP_COMPRESSED message")
    if opcode == OP_COMPRESSED:
        raise RemoteProtocolError("a compressed message inside a compressed message")
    if not 0 <= size <= MESSAGE_BYTES_MAX - HEADER_BYTES:
        raise RemoteProtocolError(f"a compressed message of {size} bytes, more than a message may have")
    try:
        compressor = Compressor(compressor_id)
    except ValueError as error:
        raise RemoteProtocolError(f"no compressor has the number {compressor_id}") from error
    payload = _inflate(frame[_PREFIX.size :], compressor, size)
    if len(payload) != size:
        raise RemoteProtocolError(f"a compressed message of {len(payload)} bytes that announced {size}")
    return _HEADER.pack(size + HEADER_BYTES, request_id, response_to, opcode) + payload, compressor


def _deflate(payload: bytes, compressor: Compressor) -> bytes:
    match compressor:
        case Compressor.NOOP:
            return payload
        case Compressor.SNAPPY:
            return bytes(cramjam.snappy.compress_raw(payload))
        case Compressor.ZLIB:
            return zlib.compress(payload)
        case Compressor.ZSTD:
            return bytes(cramjam.zstd.compress(payload))


def _inflate(packed: bytes, compressor: Compressor, size: int) -> bytes:
    """Decompress at most ``size`` bytes; errors of the compressor become RemoteProtocolError."""
    try:
        match compressor:
            case Compressor.NOOP:
                return packed
            case Compressor.SNAPPY:
                return _inflate_snappy(packed, size)
            case Compressor.ZLIB:
                return _inflate_zlib(packed, size)
            case Compressor.ZSTD:
                return _inflate_zstd(packed, size)
    except (cramjam.DecompressionError, zlib.error) as error:
        raise RemoteProtocolError(f"a message that {compressor.name.lower()} cannot decompress: {error}") from error


def _inflate_snappy(packed: bytes, size: int) -> bytes:
    if cramjam.snappy.decompress_raw_len(packed) != size:
        raise RemoteProtocolError(f"a snappy message that is not of the announced {size} bytes")
    return bytes(cramjam.snappy.decompress_raw(packed))


def _inflate_zlib(packed: bytes, size: int) -> bytes:
    inflater = zlib.decompressobj()
    # One byte beyond the announced size reveals a message that is too long. A size of 0 would mean no limit.
    payload = inflater.decompress(packed, size + 1)
    if len(payload) <= size and (not inflater.eof or inflater.unused_data):
        raise RemoteProtocolError("a zlib message that is cut off or has bytes behind its end")
    return payload


def _inflate_zstd(packed: bytes, size: int) -> bytes:
    payload = bytearray(size)
    written = cramjam.zstd.decompress_into(packed, payload)
    return bytes(payload[:written])
