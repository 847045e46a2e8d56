"""Rates and latencies between two scrapes, and the screen that shows them."""

from datetime import datetime
from math import inf
from typing import Final

import pytest

from shardwright.console.metrics import RATE_SECONDS_MIN, Durations, Interval, Sampler, Scrape
from shardwright.deploy.status import screen, watch
from tests.local_cluster import Client, RunningCluster, shardwright

ROUTER: Final = "shardwright_router_"


def text(operations: int, failed: int, *, fast: int, slow: int) -> str:
    return f"""\
# TYPE {ROUTER}operations_total counter
{ROUTER}operations_total{{command="find",outcome="ok"}} {operations}
{ROUTER}operations_total{{command="find",outcome="BadValue"}} {failed}
# TYPE {ROUTER}targeted_operations_total counter
{ROUTER}targeted_operations_total{{command="find",target="oneShard"}} {fast}
{ROUTER}targeted_operations_total{{command="find",target="allShards"}} {slow}
# TYPE {ROUTER}shard_request_duration_seconds histogram
{ROUTER}shard_request_duration_seconds_bucket{{le="0.001",shard="a"}} {fast}
{ROUTER}shard_request_duration_seconds_bucket{{le="0.01",shard="a"}} {fast + slow}
{ROUTER}shard_request_duration_seconds_bucket{{le="+Inf",shard="a"}} {fast + slow}
# TYPE {ROUTER}shard_primary_known gauge
{ROUTER}shard_primary_known{{shard="a"}} 0
"""


def interval() -> Interval:
    before = Scrape.of(10, {"r0": text(100, 10, fast=0, slow=0), "r1": text(500, 0, fast=0, slow=0)})
    after = Scrape.of(12, {"r0": text(140, 12, fast=90, slow=10), "r1": text(20, 0, fast=0, slow=0)})
    return Interval(before, after)


def test_rates_are_sums_over_processes_and_a_restart_counts_from_zero() -> None:
    assert interval().rates(f"{ROUTER}operations_total", "outcome") == {"ok": (40 + 20) / 2, "BadValue": 1}
    assert interval().rate(f"{ROUTER}operations_total") == 31
    assert interval().rate(f"{ROUTER}absent_total") == 0


def test_a_process_that_missed_a_scrape_has_no_rates_until_the_next_one() -> None:
    before = Scrape.of(10, {"r0": text(100, 0, fast=0, slow=0)})
    after = Scrape.of(12, {"r0": text(104, 0, fast=2, slow=2), "r1": text(1_000_000, 9, fast=9, slow=9)})
    assert Interval(before, after).rate(f"{ROUTER}operations_total") == 2
    assert Interval(before, after).durations(f"{ROUTER}shard_request_duration_seconds", "shard")["a"].count == 4


def test_frequent_samples_have_rates_over_a_minimum_time() -> None:
    sampler = Sampler((), 0.5)
    for tenths in range(0, 100, 5):
        # A burst of ten operations every two seconds.
        sampler.note(Scrape.of(tenths / 10, {"r0": text(tenths // 20 * 10, 0, fast=0, slow=0)}))
    points = list(sampler.points)
    assert len(points) == 19
    assert max(point.seconds for point in points) == RATE_SECONDS_MIN
    assert [point.total["rate"] for point in points[3:]] == [5.0] * 16


def test_rare_samples_have_rates_since_the_last_one() -> None:
    sampler = Sampler((), 5)
    for count in range(4):
        sampler.note(Scrape.of(count * 5.0, {"r0": text(count * count * 5, 0, fast=0, slow=0)}))
    assert [(point.seconds, point.total["rate"]) for point in sampler.points] == [(5.0, 1.0), (5.0, 3.0), (5.0, 5.0)]


def test_quantiles_are_interpolated() -> None:
    durations = interval().durations(f"{ROUTER}shard_request_duration_seconds", "shard")["a"]
    assert durations.count == 100
    assert durations.quantile(0.45) == pytest.approx(0.0005)
    assert durations.quantile(0.95) == pytest.approx(0.0055)
    assert Durations().quantile(0.5) is None
    assert Durations({0.1: 0, inf: 5}).quantile(0.5) == 0.1


def test_the_screen_shows_commands_and_shards() -> None:
    shown = screen(interval(), ("r2",), datetime(2026, 1, 2, 3, 4, 5)).splitlines()
    assert shown[0].startswith("03:04:05  31 operations/s, 1.0 errors/s, 10% to several shards")
    assert "no answer from r2" in shown
    find = next(line for line in shown if line.startswith("find"))
    assert find.split()[1:3] == ["31.0", "1.0"]
    shard = next(line for line in shown if line.startswith("a "))
    assert shard.split() == ["a", "50.0", "0.0", "0.6", "5.5", "9.1", "0.00", "-", "NO", "-"]


def shards_after(gauges: str) -> list[list[str]]:
    page = text(140, 12, fast=90, slow=10).replace(f'{ROUTER}shard_primary_known{{shard="a"}} 0\n', gauges)
    before = Scrape.of(10, {"r0": text(100, 10, fast=0, slow=0)})
    shown = screen(Interval(before, Scrape.of(12, {"r0": page})), (), datetime(2026, 1, 1)).splitlines()
    return [line.split() for line in shown[shown.index(next(each for each in shown if each.startswith("SHARD"))) + 1 :]]


def test_a_removed_shard_is_not_shown_and_an_absent_gauge_is_not_a_no() -> None:
    assert shards_after("") == [["(none)"]]
    [shard] = shards_after(f'{ROUTER}shard_members{{shard="a",state="unknown"}} 2\n')
    assert shard[-2:] == ["-", "2"]


def test_shards_that_come_and_go_are_read() -> None:
    asked, shown = [], list[str]()

    def addresses() -> dict[str, str]:
        asked.append(1)
        return {}

    watch(addresses, shown.append, lambda _: None, seconds=1, times=2, is_terminal=False)
    assert len(asked) == 3


def test_a_cluster_without_load_has_a_screen() -> None:
    empty = Scrape.of(0, {})
    assert "(none)" in screen(Interval(empty, Scrape.of(1, {})), (), datetime(2026, 1, 1))


def test_the_command_shows_a_running_cluster(cluster: RunningCluster, client: Client) -> None:
    client.top_test.c.find_one()
    done = shardwright("top", "--dir", str(cluster.directory), "--interval", "0.5", "--times", "1")
    assert done.returncode == 0, done.stderr
    assert "operations/s" in done.stdout
    assert "no answer" not in done.stdout
    for shard in cluster.shards:
        assert any(line.split()[:1] == [shard] and "yes" in line for line in done.stdout.splitlines())
    assert "\x1b" not in done.stdout


def counts(operations: int, *, started: float | None = None) -> str:
    start = "" if started is None else f"process_start_time_seconds {started}\n"
    return f'{start}{ROUTER}operations_total{{command="find",outcome="ok"}} {operations}\n'


def test_rates_of_a_process_use_the_times_of_its_own_pages() -> None:
    # The page of the frozen process comes late in the second scrape and makes the whole scrape late.
    before = Scrape.of(10, {"r0": counts(0), "r1": counts(0)}, times={"r0": 10, "r1": 10})
    after = Scrape.of(14, {"r0": counts(200), "r1": counts(40)}, times={"r0": 12, "r1": 14})
    assert Interval(before, after).rates(f"{ROUTER}operations_total", "command") == {"find": 100 + 10}


def test_requests_to_shards_use_the_times_of_their_pages_too() -> None:
    before = Scrape.of(10, {"r0": text(0, 0, fast=0, slow=0)}, times={"r0": 10})
    after = Scrape.of(14, {"r0": text(0, 0, fast=90, slow=10)}, times={"r0": 12})
    shown = screen(Interval(before, after), (), datetime(2026, 1, 1)).splitlines()
    assert next(line for line in shown if line.startswith("a ")).split()[1] == "50.0"
    sampler = Sampler((), 5)
    sampler.note(before)
    sampler.note(after)
    assert sampler.points[-1].shards["a"]["rate"] == 50


def test_a_restart_is_one_of_all_counters_of_a_process() -> None:
    def buckets(fast: int, every: int) -> str:
        return f'h_bucket{{le="0.001"}} {fast}\nh_bucket{{le="+Inf"}} {every}\n'

    before, after = (Scrape.of(at, {"p": buckets(*each)}) for at, each in ((0, (10, 1000)), (5, (300, 310))))
    assert Interval(before, after).durations("h", "")[""].buckets == {0.001: 300, inf: 310}


def test_a_restart_is_seen_by_the_start_time() -> None:
    before = Scrape.of(0, {"r0": counts(100, started=1000.5)})
    after = Scrape.of(10, {"r0": counts(150, started=1005.5)})
    assert Interval(before, after).rate(f"{ROUTER}operations_total") == 15


def test_the_screen_and_the_console_leave_out_the_same_commands() -> None:
    def page(operations: int) -> str:
        hellos = f'{ROUTER}operations_total{{command="hello",outcome="ok"}} {operations * 7}\n'
        return counts(operations) + hellos

    before, after = Scrape.of(0, {"r0": page(0)}), Scrape.of(5, {"r0": page(50)})
    shown = screen(Interval(before, after), (), datetime(2026, 1, 1))
    assert "  10 operations/s" in shown
    assert "hello" not in shown
    sampler = Sampler((), 5)
    sampler.note(before)
    sampler.note(after)
    assert sampler.points[-1].total["rate"] == 10
    assert set(sampler.points[-1].commands) == {"find"}
