"""The settings of a console."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Target:
    """A process that serves metrics.

    Attributes:
        address: ``host:port`` of its metrics.
        role: ``router``, ``shardd`` or ``configd``.
        replica_set: of shard and config daemons.
        listens: its address for clients; empty if not known.
    """

    process: str
    address: str
    role: str
    replica_set: str = ""
    listens: str = ""


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of a console.

    Attributes:
        uri: connection string of the routers, without a user.
        client_options: further options of the connections, for TLS.
        certificate: file with certificate and key; None for plain HTTP.
        sample_seconds: time between two readings of the metrics.
        idle_seconds: idle time after which a session ends.
    """

    uri: str
    client_options: Mapping[str, Any] = field(default_factory=dict)
    targets: Sequence[Target] = ()
    bind_ip: Sequence[str] = ("127.0.0.1",)
    port: int = 0
    certificate: Path | None = None
    sample_seconds: float = 5.0
    idle_seconds: float = 1800.0
    title: str = ""

    @property
    def is_on_loopback(self) -> bool:
        """Whether only this machine reaches the console."""
        return all(is_loopback(address) for address in self.bind_ip)


def is_loopback(host: str) -> bool:
    """Whether a host name or address is loopback."""
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def read_targets(path: Path) -> list[Target]:
    """Read the targets in a file of Prometheus's ``file_sd_configs``.

    Raises:
        OSError: it cannot be read.
        ValueError: it has another form.
    """
    try:
        found = []
        for group in json.loads(path.read_text(encoding="utf-8")):
            labels = group.get("labels", {})
            worker = labels.get("worker", "0")
            for address in group["targets"]:
                name = labels.get("process", address)
                found.append(
                    Target(
                        name if worker == "0" else f"{name}/{worker}",
                        address,
                        labels.get("job", "").removeprefix("shardwright-"),
                        labels.get("replica_set", ""),
                    )
                )
        return found
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} is not a list of targets as `shardwright monitor-config` writes it") from error
