"""Compression of long messages in threads, since every other client would have to wait if the event loop did it.

The compressors release the interpreter's lock. A short message is finished before a thread would have started. A
connection serves one request at a time, so its frames keep their order.
"""

from typing import Final

import trio

from shardwright.wire import compression
from shardwright.wire.compression import Compressor
from shardwright.wire.errors import RemoteProtocolError
from shardwright.wire.frames import HEADER_BYTES
from shardwright.wire.limits import MESSAGE_BYTES_MAX
from shardwright.wire.transport.request_loop import in_own_task, may_run_in_reactor

LONG_MESSAGE_BYTES: Final = 1 << 18
"""Uncompressed size from which a thread is used; zlib takes some milliseconds for that."""

_THREADS_MAX: Final = 2
"""At the same time; requests that wait hold a reply, but neither a connection to a shard nor the event loop."""

_threads = trio.CapacityLimiter(_THREADS_MAX)


@may_run_in_reactor
async def compress(frame: bytes, compressor: Compressor) -> bytes:
    """See `wire.compression.compress`."""
    if len(frame) < LONG_MESSAGE_BYTES:
        return compression.compress(frame, compressor)
    await in_own_task()
    return await trio.to_thread.run_sync(compression.compress, frame, compressor, limiter=_threads)


@may_run_in_reactor
async def decompress(frame: bytes, bytes_max: int = MESSAGE_BYTES_MAX) -> tuple[bytes, Compressor]:
    """See `wire.compression.decompress`.

    Args:
        frame: the frame.
        bytes_max: the longest frame that may be inside.
    """
    announced = compression.announced_bytes(frame)
    if announced + HEADER_BYTES > bytes_max:
        raise RemoteProtocolError(f"a compressed message of {announced} bytes, more than a message may have")
    if announced < LONG_MESSAGE_BYTES:
        return compression.decompress(frame)
    await in_own_task()
    return await trio.to_thread.run_sync(compression.decompress, frame, limiter=_threads)
