"""Daemons that are stopped with SIGTERM in the middle of a migration."""

import signal
import time
from collections.abc import Iterator

import pytest

from shardwright.shardd.service import SHUTDOWN_SECONDS
from tests.server_parameters import server_parameter
from tests.shardd.migration.donor.moving import (
    LOW,
    TOP,
    Move,
    daemon,
    end,
    migrations_left,
    stopped_move,
    wait_finished,
)
from tests.shardd.mini_cluster import Member, MiniCluster
from tests.shardd.router_stand_in import ShardedNamespace

PROMPT_SECONDS = SHUTDOWN_SECONDS + 3
"""Operations in progress may continue for a while; then they are cut off."""

COUNT = 100


@pytest.fixture
def filled(mini: MiniCluster, ranged: ShardedNamespace) -> Iterator[ShardedNamespace]:
    """The collection with documents in the range to move, which can move back soon."""
    ranged.insert(*({"_id": n, "a": n} for n in range(10, 10 + COUNT)))
    with (
        server_parameter(daemon(mini, "sh0"), "orphanCleanupDelaySecs", 0),
        server_parameter(daemon(mini, "sh1"), "orphanCleanupDelaySecs", 0),
    ):
        yield ranged


def terminate(member: Member) -> float:
    """Stop a daemon with SIGTERM and restart it; returns how many seconds it took to stop."""
    began = time.monotonic()
    member.daemon.stop(signal.SIGTERM)
    seconds = time.monotonic() - began
    member.daemon.start()
    member.wait_ready()
    return seconds


def assert_nothing_lost(mini: MiniCluster, sharded: ShardedNamespace) -> None:
    """Every document is visible once, and either shard is free for the next move."""
    wait_finished(mini)
    owner = sharded.chunks()[-1]["shard"]
    other = "sh0" if owner == "sh1" else "sh1"
    assert len(sharded.documents(owner)) == COUNT
    assert sharded.documents(other) == []
    sharded.insert({"_id": 1000, "a": 1000}, shard=owner)
    Move(sharded, LOW, TOP, other).wait()
    assert len(sharded.documents(other)) == COUNT + 1
    assert sharded.documents(owner) == []
    assert migrations_left(mini, "sh0") == migrations_left(mini, "sh1") == []


def test_the_donor_is_stopped(mini: MiniCluster, filled: ShardedNamespace) -> None:
    with stopped_move(filled, "moveChunkHangAtStep4") as move:
        seconds = terminate(mini.shards["sh0"].members[0])
        end(move)
    assert seconds < PROMPT_SECONDS
    assert_nothing_lost(mini, filled)


def test_the_recipient_is_stopped(mini: MiniCluster, filled: ShardedNamespace) -> None:
    with stopped_move(filled, "moveChunkHangAtStep4") as move:
        seconds = terminate(mini.shards["sh1"].members[0])
    end(move)
    assert seconds < PROMPT_SECONDS
    assert_nothing_lost(mini, filled)
