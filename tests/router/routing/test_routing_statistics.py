"""Counts of active and of failed refreshes of routing tables."""

import pytest

from shardwright.router.routing.routing_cache import RoutingStatistics
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError


def test_active_refreshes() -> None:
    statistics = RoutingStatistics()
    with statistics.refreshing(is_incremental=True), statistics.refreshing(is_incremental=False):
        assert (statistics.active_incremental_refreshes, statistics.active_full_refreshes) == (1, 1)
        with statistics.refreshing(is_incremental=False):
            assert statistics.active_full_refreshes == 2
    assert (statistics.active_incremental_refreshes, statistics.active_full_refreshes) == (0, 0)
    assert statistics.refresh_seconds > 0
    assert statistics.failed_refreshes == 0


def test_a_failed_refresh_is_active_no_more() -> None:
    statistics = RoutingStatistics()
    with pytest.raises(CommandError), statistics.refreshing(is_incremental=False):
        raise CommandError(ErrorCode.HostUnreachable, "")
    assert (statistics.active_full_refreshes, statistics.failed_refreshes) == (0, 1)
