"""Compression of long messages in threads: what would keep every other client waiting while the event loop does it.

The compressors let the interpreter go on meanwhile. A short message is done with before a thread would have begun.
A connection serves one request at a time, so that its frames keep their order.
"""

from typing import Final

import trio

from shardwright.wire import compression
from shardwright.wire.compression import Compressor
from shardwright.wire.transport.request_loop import in_own_task, may_run_in_reactor

LONG_MESSAGE_BYTES: Final = 1 << 18
"""Uncompressed; zlib takes some milliseconds for that."""

_THREADS_MAX: Final = 2
"""At once; those that wait hold a reply, but neither a connection to a shard nor the event loop."""

_threads = trio.CapacityLimiter(_THREADS_MAX)


@may_run_in_reactor
async def compress(frame: bytes, compressor: Compressor) -> bytes:
    """See `wire.compression.compress`."""
    if len(frame) < LONG_MESSAGE_BYTES:
        return compression.compress(frame, compressor)
    await in_own_task()
    return await trio.to_thread.run_sync(compression.compress, frame, compressor, limiter=_threads)


@may_run_in_reactor
async def decompress(frame: bytes) -> tuple[bytes, Compressor]:
    """See `wire.compression.decompress`."""
    if compression.announced_bytes(frame) < LONG_MESSAGE_BYTES:
        return compression.decompress(frame)
    await in_own_task()
    return await trio.to_thread.run_sync(compression.decompress, frame, limiter=_threads)
