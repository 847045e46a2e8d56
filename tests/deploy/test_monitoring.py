"""The shipped rules and dashboards, and the configuration that is written for a cluster."""

import json
import re
import shutil
import subprocess
from itertools import count
from pathlib import Path
from typing import Any, Final
from urllib.request import urlopen

import pytest

from shardwright.deploy.dashboards import DASHBOARDS
from shardwright.deploy.observing import RULES, scrape_targets
from shardwright.deploy.topology import Size, Topology
from tests.deploy.rules import names_in, parsed, rules
from tests.local_cluster import Client, RunningCluster, shardwright
from tests.syntax import ROOT

PROMTOOL: Final = shutil.which("promtool")
RULE_TESTS: Final = ROOT / "tests/deploy/rules_test.yml"
RECORDED: Final = {rule["record"] for rule in rules("recording.yml")}
EXPRESSIONS: Final = [
    *(rule["expr"] for name in ("recording.yml", "alerts.yml") for rule in rules(name)),
    *(expression for dashboard in DASHBOARDS for expression in dashboard.expressions()),
]


def served(cluster: RunningCluster) -> set[str]:
    """The names of all samples that the daemons of a cluster can have, from the types that they announce."""
    names = set()
    for address in cluster.metrics.values():
        with urlopen(f"http://{address}/metrics", timeout=30) as reply:
            text = reply.read().decode()
        for name, kind in re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE):
            names.update({f"{name}_{part}" for part in ("bucket", "count", "sum")} if kind == "histogram" else {name})
    return names


def test_names_are_found_in_expressions() -> None:
    assert list(names_in('rate({__name__=~"shardwright_(router|shardd)_x_total", a="b"}[1m]) > shardwright:y:z')) == [
        "shardwright_router_x_total",
        "shardwright_shardd_x_total",
        "shardwright:y:z",
    ]
    assert list(names_in("process_open_fds / process_max_fds")) == ["process_open_fds", "process_max_fds"]


def test_every_metric_of_rules_and_dashboards_is_served(cluster: RunningCluster) -> None:
    wanted = {name for expression in EXPRESSIONS for name in names_in(expression)}
    assert len(wanted) > 60
    assert wanted - served(cluster) - RECORDED == set()


def test_every_recorded_series_is_used() -> None:
    assert RECORDED - {name for expression in EXPRESSIONS for name in names_in(expression)} == set()


def test_alerts_say_what_has_happened_and_what_to_do() -> None:
    alerts = rules("alerts.yml")
    assert len({alert["alert"] for alert in alerts}) == len(alerts) > 30
    for alert in alerts:
        assert alert["labels"]["severity"] in ("critical", "warning", "info")
        assert set(alert["annotations"]) == {"summary", "description"}
        assert alert["annotations"]["description"].endswith(".")


def test_the_page_lists_every_alert_under_its_severity() -> None:
    page, severity, listed = (ROOT / "docs/monitoring.md").read_text(encoding="utf-8"), "", []
    for line in page.splitlines():
        if head := re.match(r"\| `(\w+)`.*\| Fires when \|$", line):
            severity = head[1]
        elif row := re.match(r"\| `(Shardwright\w+)` \| .", line):
            listed.append((row[1], severity))
    assert sorted(listed) == sorted((alert["alert"], alert["labels"]["severity"]) for alert in rules("alerts.yml"))


def test_every_alert_has_a_test() -> None:
    tested = {case["alertname"] for test in parsed(RULE_TESTS)["tests"] for case in test.get("alert_rule_test", ())}
    assert {alert["alert"] for alert in rules("alerts.yml")} - tested == set()


@pytest.mark.skipif(PROMTOOL is None, reason="promtool is not installed")
def test_promtool_accepts_the_rules_and_their_tests(tmp_path: Path) -> None:
    for path in (*RULES.glob("*.yml"), RULE_TESTS):
        shutil.copyfile(path, tmp_path / path.name)
    for command in (["check", "rules", "alerts.yml", "recording.yml"], ["test", "rules", RULE_TESTS.name]):
        assert PROMTOOL is not None
        done = subprocess.run([PROMTOOL, *command], cwd=tmp_path, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda each: each.name)
def test_a_dashboard_has_panels_that_do_not_overlap(dashboard: Any) -> None:  # noqa: ANN401 - a parameter
    document = dashboard.to_document()
    places = [tuple(panel["gridPos"].values()) for panel in document["panels"]]
    assert len(set(places)) == len(places) > 5
    assert all(x + width <= 24 for x, _, width, _ in places)
    assert len({panel["title"] for panel in document["panels"]}) == len(places)


def test_the_command_writes_targets_of_all_daemons(cluster: RunningCluster, tmp_path: Path) -> None:
    done = shardwright("monitor-config", "--dir", str(cluster.directory), "--out", str(tmp_path / "out"))
    assert done.returncode == 0, done.stderr
    written = {Path(line).relative_to(tmp_path / "out").as_posix() for line in done.stdout.splitlines()}
    assert written == {
        "prometheus.yml",
        "targets.json",
        "recording.yml",
        "alerts.yml",
        *(f"dashboards/{each.name}.json" for each in DASHBOARDS),
    }
    targets = json.loads((tmp_path / "out/targets.json").read_text())
    assert {each["labels"]["process"]: each["targets"] for each in targets} == {
        name: [address] for name, address in cluster.metrics.items()
    }
    assert {each["labels"]["job"] for each in targets} == {
        "shardwright-router",
        "shardwright-shardd",
        "shardwright-configd",
    }


def test_each_worker_of_a_router_is_a_target() -> None:
    ports = count(30_000, 10)
    topology = Topology.plan(Size(), router_port=lambda _: 27_017, free_ports=lambda _: next(ports), workers=2)
    targets = scrape_targets(topology, 2, "c")
    routers = [each for each in targets if each["labels"]["job"] == "shardwright-router"]
    assert [each["labels"]["worker"] for each in routers] == ["0", "1"]
    first, second = (int(each["targets"][0].partition(":")[2]) for each in routers)
    assert second == first + 1


def test_the_chunk_map_of_a_collection_is_printed(cluster: RunningCluster, client: Client) -> None:
    client.admin.command("shardCollection", "map_test.c", key={"x": 1})
    client.admin.command("split", "map_test.c", middle={"x": 7})
    try:
        done = shardwright("map", "map_test.c", "--dir", str(cluster.directory))
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines()[0] == "map_test.c { x: 1 }: 2 chunks"
        missing = shardwright("map", "map_test.absent", "--dir", str(cluster.directory))
        assert (missing.returncode, missing.stderr.strip()) == (1, "shardwright: map_test.absent is not sharded")
    finally:
        client.drop_database("map_test")
