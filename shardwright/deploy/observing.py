"""Reads of a cluster, for the commands that do not change it: ``map``, ``top``, ``explain``, ``check`` and others.

``shardwright monitor-config`` writes the configuration of Prometheus and Grafana for the cluster::

    OUT/prometheus.yml        scrapes the targets and loads the rules
    OUT/targets.json          all daemons, with the labels that rules and dashboards use
    OUT/recording.yml         recording rules
    OUT/alerts.yml            alerts
    OUT/dashboards/NAME.json  dashboards of Grafana, to be provisioned or imported
"""

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bson.json_util import dumps
from pymongo.errors import PyMongoError

from shardwright.console.any_value import CLIENT_OPTIONS
from shardwright.console.settings import Target, WatchedTargets
from shardwright.deploy.balancing import ChunkMap, draw
from shardwright.deploy.cluster_state import ClusterState
from shardwright.deploy.dashboards import DASHBOARDS
from shardwright.deploy.errors import DeployError, reason
from shardwright.deploy.layout import Layout
from shardwright.deploy.mongod import client_of
from shardwright.deploy.topology import LOOPBACK, Role, Topology

CONNECT_MILLISECONDS_MAX = 10_000

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


@dataclass(frozen=True, slots=True)
class SeenByConsole:
    """Addresses and options with which a console connects to a cluster.

    Attributes:
        client_options: further options of connections, for TLS.
    """

    uri: str
    title: str
    targets: Sequence[Target]
    client_options: Mapping[str, Any]


class ClusterObserver:
    """The cluster in one directory, which is not changed.

    Its methods raise `DeployError` if there is no cluster in the directory.
    """

    def __init__(self, directory: Path) -> None:
        self._layout = Layout(directory.resolve())

    def _state(self) -> ClusterState:
        return self._layout.require()

    def write_monitor_config(self, out: Path | None) -> list[Path]:
        """Write the configuration of Prometheus and Grafana, and return the files.

        Args:
            out: the directory for them; None for ``monitoring`` in the cluster's directory."""
        state = self._state()
        targets = scrape_targets(state.topology, state.workers, self._layout.root.name)
        try:
            return _write_monitor_config(out or self._layout.root / "monitoring", targets)
        except OSError as error:
            raise DeployError(f"cannot write {error.filename}: {error.strerror}") from error

    def metrics_addresses(self) -> dict[str, str]:
        """Return ``host:port`` of each process's metrics, by its name; each worker of a router has its own."""
        state = self._state()
        targets = scrape_targets(state.topology, state.workers, self._layout.root.name)
        return {_name(each["labels"]): each["targets"][0] for each in targets}

    def console(self) -> SeenByConsole:
        """Return addresses and options for a console, which logs in with its users' own names."""
        state = self._state()
        targets = WatchedTargets(self._layout.state_file, self._targets)
        return SeenByConsole(state.topology.uri, self._layout.root.name, targets, self._layout.client_connection(state))

    def _targets(self) -> list[Target]:
        """Return the metrics of all processes.

        Raises:
            ValueError: the directory no longer has a cluster, or its state cannot be read.
        """
        try:
            state = self._state()
        except DeployError as error:
            raise ValueError(str(error)) from error
        listens = {plan.name: state.address(plan) for plan in state.topology.processes}
        scraped = scrape_targets(state.topology, state.workers, self._layout.root.name)
        return [
            Target(
                _name(each["labels"]),
                each["targets"][0],
                each["labels"]["job"].removeprefix("shardwright-"),
                each["labels"].get("replica_set", ""),
                listens[each["labels"]["process"]],
            )
            for each in scraped
        ]

    def client(self) -> tuple[str, dict[str, Any]]:
        """Return the connection string of the routers, and the options of a client that may read everything."""
        state = self._state()
        return state.topology.uri, dict(self._layout.log_in(state))

    def chunk_map(self, namespace: str) -> str:
        """Draw the chunk map of a sharded collection."""
        state = self._state()
        return chunk_map_text(state.topology.uri, self._layout.log_in(state), namespace)


def chunk_map_text(uri: str, log_in: Mapping[str, Any], namespace: str) -> str:
    """Read a sharded collection's chunks through a router, and draw the chunk map."""
    options = {"serverSelectionTimeoutMS": CONNECT_MILLISECONDS_MAX, **CLIENT_OPTIONS, **log_in}
    try:
        with client_of(uri, options) as client:
            shards = [shard["_id"] for shard in client["config"]["shards"].find().sort("_id", 1)]
            return draw(ChunkMap.fetch(client, namespace), shards)
    except LookupError as error:
        raise DeployError(str(error.args[0])) from error
    except PyMongoError as error:
        raise DeployError(f"could not read the chunks of {namespace}: {reason(error)}") from error


def _name(labels: Mapping[str, str]) -> str:
    """Return the display name of a process; further workers of a router have their number added."""
    worker = labels.get("worker", "0")
    return labels["process"] if worker == "0" else f"{labels['process']}/{worker}"


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


def _write_monitor_config(directory: Path, targets: list[dict[str, Any]]) -> list[Path]:
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


def inconsistencies(uri: str, log_in: Mapping[str, Any], *, indexes: bool) -> list[dict[str, Any]]:
    """Run ``checkMetadataConsistency`` on a cluster.

    Args:
        indexes: whether to compare the indexes of the shards too."""
    try:
        with client_of(uri, log_in) as client:
            reply = client.admin.command("checkMetadataConsistency", 1, checkIndexes=indexes)
    except PyMongoError as error:
        raise DeployError(f"the cluster refused: {reason(error)}") from error
    found: list[dict[str, Any]] = reply["cursor"]["firstBatch"]
    return found


def inconsistencies_text(found: Sequence[dict[str, Any]]) -> str:
    """Format the inconsistencies, a line for each."""
    if not found:
        return "no inconsistencies"
    lines = [f"{len(found)} {'inconsistency' if len(found) == 1 else 'inconsistencies'}"]
    return "\n".join([*lines, *map(_inconsistency_text, found)])


def _inconsistency_text(found: dict[str, Any]) -> str:
    details = {name: value for name, value in found["details"].items() if name != "namespace"}
    return f"  {found['details']['namespace']}: {found['type']}: {found['description']} {dumps(details)}"
