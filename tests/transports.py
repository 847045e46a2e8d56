"""Transports for tests: each test creates its own, so that none changes another one's settings."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from shardwright.wire.tls import ProcessTls
from shardwright.wire.transport.cluster_auth import ClusterAuth
from shardwright.wire.transport.reply_memory import UnreadReplies
from shardwright.wire.transport.reservations import UnreadBounds
from shardwright.wire.transport.transport import LocalSockets, Timeouts, Transport


def new_transport(
    *,
    tls: ProcessTls | None = None,
    cluster_auth: ClusterAuth | None = None,
    bounds: UnreadBounds | None = None,
    timeouts: Timeouts | None = None,
    socket_directory: Path | None = None,
) -> Transport:
    """Create a transport with the defaults of a process and the given parts."""
    tls = tls or ProcessTls()
    return Transport(
        tls,
        cluster_auth or ClusterAuth(tls),
        UnreadReplies(bounds or UnreadBounds()),
        timeouts or Timeouts(),
        LocalSockets(socket_directory),
    )


@pytest.fixture
def transport() -> Iterator[Transport]:
    """A transport with defaults; after the test, the counters of unread replies must be zero."""
    transport = new_transport()
    yield transport
    unread = transport.unread_replies
    assert unread.total_bytes == unread.reservations.total_bytes == unread.holdings.total_bytes == 0
