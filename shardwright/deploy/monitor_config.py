"""The configuration of Prometheus and Grafana for one cluster: ``shardwright monitor-config``.

::

    OUT/prometheus.yml        scrapes the targets and loads the rules
    OUT/targets.json          all daemons, with the labels that rules and dashboards use
    OUT/recording.yml         recording rules
    OUT/alerts.yml            alerts
    OUT/dashboards/NAME.json  dashboards of Grafana, to be provisioned or imported
"""

import json
import shutil
from pathlib import Path
from typing import Any, Final

from shardwright.deploy.dashboards import DASHBOARDS
from shardwright.deploy.topology import LOOPBACK, Role, Topology

RULES: Final = Path(__file__).with_name("monitoring")
"""The directory of the rules."""

_PROMETHEUS: Final = """\
global:
  scrape_interval: 15s
  evaluation_interval: 15s
rule_files:
  - recording.yml
  - alerts.yml
scrape_configs:
  - job_name: shardwright
    file_sd_configs:
      - files: [targets.json]
"""


def scrape_targets(topology: Topology, workers: int, cluster: str) -> list[dict[str, Any]]:
    """Return the targets for Prometheus's ``file_sd_configs``, one for each process that serves metrics.

    Args:
        workers: processes per router; each has a port of its own.
    """
    targets = []
    for plan in topology.processes:
        if plan.metrics_port is None:
            continue
        labels = {"job": f"shardwright-{plan.role.value}", "cluster": cluster, "process": plan.name}
        if plan.replica_set is not None:
            labels["replica_set"] = plan.replica_set
        for worker in range(workers if plan.role is Role.ROUTER else 1):
            each = {**labels, "worker": str(worker)} if plan.role is Role.ROUTER else labels
            targets.append({"targets": [f"{LOOPBACK}:{plan.metrics_port + worker}"], "labels": each})
    return targets


def write_monitor_config(directory: Path, targets: list[dict[str, Any]]) -> list[Path]:
    """Write all files, replacing earlier ones, and return their paths."""
    (directory / "dashboards").mkdir(parents=True, exist_ok=True)
    files = {
        "prometheus.yml": _PROMETHEUS,
        "targets.json": _text(targets),
        **{f"dashboards/{each.name}.json": _text(each.to_document()) for each in DASHBOARDS},
    }
    for name, text in files.items():
        (directory / name).write_text(text, encoding="utf-8")
    copied = sorted(RULES.glob("*.yml"))
    for rules in copied:
        shutil.copyfile(rules, directory / rules.name)
    return [directory / name for name in (*files, *(each.name for each in copied))]


def _text(document: object) -> str:
    return json.dumps(document, indent=2) + "\n"
