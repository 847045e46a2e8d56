"""Read access to a cluster for the commands that do not change it: ``map``, ``top``, ``explain`` and others."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pymongo import MongoClient
from pymongo.errors import PyMongoError

from shardwright.console.settings import Target
from shardwright.deploy.chunk_map import ChunkMap, draw
from shardwright.deploy.cluster_state import ClusterState
from shardwright.deploy.errors import DeployError, reason
from shardwright.deploy.layout import Layout
from shardwright.deploy.monitor_config import scrape_targets, write_monitor_config

CONNECT_MILLISECONDS_MAX = 10_000


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
            return write_monitor_config(out or self._layout.root / "monitoring", targets)
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
        listens = {plan.name: state.address(plan) for plan in state.topology.processes}
        scraped = scrape_targets(state.topology, state.workers, self._layout.root.name)
        targets = [
            Target(
                _name(each["labels"]),
                each["targets"][0],
                each["labels"]["job"].removeprefix("shardwright-"),
                each["labels"].get("replica_set", ""),
                listens[each["labels"]["process"]],
            )
            for each in scraped
        ]
        return SeenByConsole(
            state.topology.uri, self._layout.root.name, tuple(targets), self._layout.client_connection(state)
        )

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
    options = {"serverSelectionTimeoutMS": CONNECT_MILLISECONDS_MAX, **log_in}
    try:
        with MongoClient[dict[str, Any]](uri, **options) as client:
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
