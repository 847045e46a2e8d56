"""The times at which the balancer may run."""

from datetime import datetime
from typing import Any

import pytest

from shardwright.sharding.catalog.settings import ActiveWindow, BalancerSettings
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError


def at(text: str) -> datetime:
    """A time of some day, in the middle of a minute."""
    hour, minute = map(int, text.split(":"))
    return datetime(2026, 11, 22, hour, minute, 30)


@pytest.mark.parametrize(
    ("start", "stop", "inside", "outside"),
    [
        ("01:00", "05:00", ["01:00", "3:10", "05:00"], ["00:59", "05:01", "23:00"]),
        ("22:30", "2:15", ["22:30", "23:59", "00:00", "2:15"], ["2:16", "12:00", "22:29"]),
    ],
)
def test_the_window_includes_its_ends_and_may_go_past_midnight(
    start: str, stop: str, inside: list[str], outside: list[str]
) -> None:
    window = ActiveWindow.from_document({"start": start, "stop": stop})
    assert [window.includes(at(each)) for each in inside] == [True] * len(inside)
    assert [window.includes(at(each)) for each in outside] == [False] * len(outside)


@pytest.mark.parametrize(
    "window",
    [
        {"start": "01:00"},
        {"start": "01:00", "stop": "01:00"},
        {"start": "01:00", "stop": "24:00"},
        {"start": "1", "stop": "2:00"},
        {"start": 1, "stop": "2:00"},
    ],
)
def test_windows_that_are_none(window: dict[str, Any]) -> None:
    with pytest.raises(CommandError) as failure:
        BalancerSettings.from_document({"_id": "balancer", "activeWindow": window})
    assert failure.value.code == ErrorCode.BadValue


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        (None, True),
        ({}, True),
        ({"mode": "full", "stopped": True}, False),
        ({"mode": "off", "stopped": False}, False),
        ({"mode": "autoSplitOnly"}, False),
        ({"activeWindow": {"start": "11:00", "stop": "13:00"}}, True),
        ({"activeWindow": {"start": "13:00", "stop": "11:00"}}, False),
    ],
)
def test_when_rounds_may_begin(document: dict[str, Any] | None, expected: bool) -> None:
    assert BalancerSettings.from_document(document).may_balance(at("12:00")) is expected


def test_policies() -> None:
    assert BalancerSettings.from_document({"_id": "balancer", "balancerPolicy": "chunkCount"}).policy == "chunkCount"
    with pytest.raises(CommandError) as failure:
        BalancerSettings.from_document({"_id": "balancer", "balancerPolicy": "mood"})
    assert failure.value.code == ErrorCode.BadValue
