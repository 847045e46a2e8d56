"""Problems in words, from facts."""

from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pytest

from shardwright.console.metrics import Labels, Sampler, Scrape
from shardwright.console.problems import problems
from shardwright.console.settings import Settings, Target

NOW: Final = datetime(2026, 11, 29, tzinfo=UTC)


def member(address: str, **facts: Any) -> dict[str, Any]:  # noqa: ANN401 - facts of all types
    fixed = {"state": "primary", "lagSeconds": 0, "daemonVersion": "1", "certificateExpires": None}
    return {"address": address, **fixed, **facts}


def cluster(**facts: Any) -> dict[str, Any]:  # noqa: ANN401 - facts of all types
    shard = {"_id": "s0", "members": [member("s0:1")], "draining": False, "diskUsed": 1, "diskTotal": 10}
    return {
        "at": NOW,
        "balancer": {"mode": "full"},
        "routers": [{**member("r:1"), "isAlive": True, "seenSecondsAgo": 3.0}],
        "configServers": {"_id": "config", "members": [member("c:1")]},
        "shards": [{**shard, **facts.pop("shard", {})}],
        "rates": None,
        "isListed": True,
        "isMonitored": True,
        **facts,
    }


def found(document: dict[str, Any], sampler: Sampler | None = None, *targets: Target) -> list[tuple[str, str]]:
    each = problems(document, sampler or Sampler((), 1), Settings("mongodb://r", targets=targets))
    assert all(set(problem) == {"severity", "where", "what", "mend"} for problem in each)
    return [(problem["severity"], problem["where"]) for problem in each]


def test_a_healthy_cluster_has_none() -> None:
    assert found(cluster()) == []


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({"shard": {"members": [member("s0:1", state="secondary")]}}, [("error", "s0")]),
        ({"shard": {"members": []}}, [("warning", "s0")]),
        ({"shard": {"members": []}, "isMonitored": False}, []),
        ({"isListed": False}, [("warning", "cluster")]),
        ({"shard": {"members": [member("a"), member("b", state="down")]}}, [("error", "b")]),
        ({"shard": {"members": [member("a"), member("b", state="recovering")]}}, [("warning", "b")]),
        ({"shard": {"members": [member("a"), member("b", state="secondary", lagSeconds=40)]}}, [("warning", "b")]),
        ({"shard": {"diskUsed": 9}}, [("warning", "s0")]),
        ({"shard": {"diskUsed": 9.9}}, [("error", "s0")]),
        ({"shard": {"draining": True}}, [("info", "s0")]),
        (
            {"shard": {"draining": True}, "balancer": {"mode": "off"}},
            [("warning", "s0"), ("info", "balancer")],
        ),
        (
            {"shard": {"members": [member("a", certificateExpires=NOW + timedelta(days=3))]}},
            [("warning", "a")],
        ),
        ({"shard": {"members": [member("a", certificateExpires=NOW - timedelta(days=3))]}}, [("error", "a")]),
        ({"shard": {"members": [member("a", daemonVersion="2")]}}, [("warning", "cluster")]),
        ({"routers": [{**member("r:1"), "isAlive": False, "seenSecondsAgo": 1000.0}]}, [("warning", "r:1")]),
        ({"rates": {"rate": 100.0, "errors": 20.0}}, [("warning", "operations")]),
    ],
)
def test_each_problem_is_found(facts: dict[str, Any], expected: list[tuple[str, str]]) -> None:
    assert found(cluster(**facts)) == expected


def test_silent_processes_and_bugs() -> None:
    targets = (Target("shard0", "a:1", "shardd"), Target("router.0", "b:1", "router"))
    errors: tuple[str, Labels] = ("shardwright_router_internal_errors_total", frozenset())
    samples = {"router.0": {errors: 2.0}}
    sampler = Sampler(targets, 1, silent=frozenset({"shard0"}), latest=Scrape(0, samples))
    assert found(cluster(), sampler, *targets) == [("error", "shard0"), ("warning", "router.0")]
