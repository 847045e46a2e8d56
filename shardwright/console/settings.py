"""The settings of a console, and its options in the form of the daemons' table of options."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Final, overload

from shardwright.daemon.configuration.option import (
    ADDRESSES,
    BOOLEAN,
    COUNT,
    PATH,
    PORT,
    SECONDS,
    TEXT,
    Option,
    Program,
    choice,
)
from shardwright.daemon.logs import LEVELS, LogFormat
from shardwright.wire.logger import get_logger

_log = get_logger("console.settings")

DEFAULT_PORT: Final = 8027

_NETWORK: Final = "Network"
_TLS: Final = "TLS"
_LOGS: Final = "Logs"
_CLUSTER: Final = "Cluster"

CONSOLE: Final = Program(
    "shardwright console",
    "Show a cluster in the browser.",
    (
        Option(
            name="bind-ip",
            path="net.bindIp",
            type=ADDRESSES,
            section=_NETWORK,
            default="127.0.0.1",
            help="addresses to listen on, separated by commas",
        ),
        Option(
            name="port",
            path="net.port",
            type=PORT,
            section=_NETWORK,
            default=str(DEFAULT_PORT),
            help="port for browsers, 0 for any free one",
        ),
        Option(
            name="tls-certificate-key-file",
            path="net.tls.certificateKeyFile",
            type=PATH,
            section=_TLS,
            default_text="no TLS",
            help="serve HTTPS with this certificate and private key, PEM",
        ),
        Option(
            name="allow-plain-http",
            path="shardwright.console.allowPlainHttp",
            type=BOOLEAN,
            section=_TLS,
            default="false",
            help="listen on other addresses than loopback without TLS: a proxy in front of the console has it",
        ),
        Option(
            name="proxy-addresses",
            path="shardwright.console.proxyAddresses",
            type=ADDRESSES,
            section=_NETWORK,
            default_text="none",
            help="addresses of proxies in front of the console, whose X-Forwarded-For names the browser's address",
        ),
        Option(
            name="metrics-targets",
            path="shardwright.console.metricsTargets",
            type=PATH,
            section=_CLUSTER,
            default_text="the processes of the cluster in the directory",
            help="file with the daemons' metrics endpoints, targets.json of `shardwright monitor-config`",
        ),
        Option(
            name="sample-seconds",
            path="shardwright.console.sampleSeconds",
            type=SECONDS,
            section=_CLUSTER,
            default="5",
            help="time between two readings of the metrics",
        ),
        Option(
            name="idle-minutes",
            path="shardwright.console.idleMinutes",
            type=COUNT,
            section=_CLUSTER,
            default="30",
            help="end a session that is idle for this long",
        ),
        Option(
            name="title",
            path="shardwright.console.title",
            type=TEXT,
            section=_CLUSTER,
            default_text="the name of the directory, or the first router",
            help="name of the cluster on the pages",
        ),
        Option(
            name="log-level",
            path="systemLog.verbosity",
            type=choice({level: level for level in LEVELS}),
            section=_LOGS,
            default="info",
            help="the least severe lines to log",
        ),
        Option(
            name="log-file",
            path="systemLog.path",
            type=PATH,
            section=_LOGS,
            default_text="standard error",
            help="append the log, with the actions of users, to this file",
        ),
        Option(
            name="log-format",
            path="shardwright.log.format",
            type=choice({str(each): each for each in LogFormat}),
            section=_LOGS,
            default=str(LogFormat.JSON),
            help="the form of log lines: ours, or mongod's",
        ),
    ),
)
"""The program; `daemon.configuration` reads its command line, environment and file."""

STATIC: Final = Path(__file__).with_name("static")
TEMPLATES: Final = Path(__file__).with_name("templates")


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


class WatchedTargets(Sequence[Target]):
    """The targets in a file, read again by `refresh` after the file has changed.

    Args:
        read: returns the targets; it raises OSError or ValueError if it cannot.
    """

    def __init__(self, file: Path, read: Callable[[], Sequence[Target]]) -> None:
        self._file = file
        self._read = read
        self._version = self._newest_version()
        self._targets = tuple(read())

    @overload
    def __getitem__(self, index: int) -> Target: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Target]: ...
    def __getitem__(self, index: int | slice) -> Target | Sequence[Target]:
        return self._targets[index]

    def __len__(self) -> int:
        return len(self._targets)

    def __iter__(self) -> Iterator[Target]:
        return iter(self._targets)

    def refresh(self) -> None:
        """Read the file if it has changed; a file that is missing or half written leaves the targets as they are."""
        version = self._newest_version()
        if version in (None, self._version):
            return
        try:
            self._targets = tuple(self._read())
        except (OSError, ValueError) as error:
            _log.warning("Could not read the list of processes", file=str(self._file), error=str(error))
            return
        self._version = version

    def _newest_version(self) -> tuple[int, ...] | None:
        try:
            found = self._file.stat()
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size, found.st_ino


def current(targets: Sequence[Target]) -> Sequence[Target]:
    """Return the present targets in a sequence that does not change."""
    if isinstance(targets, WatchedTargets):
        targets.refresh()
    return tuple(targets)


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of a console.

    Attributes:
        uri: connection string of the routers, without a user.
        client_options: further options of the connections, for TLS.
        targets: the daemons' metrics endpoints; a list from a file changes with the file.
        certificate: file with certificate and key; None for plain HTTP.
        is_behind_tls: whether a proxy in front of the console has TLS.
        proxies: addresses of proxies whose X-Forwarded-For names the browser's address.
        sample_seconds: time between two readings of the metrics.
        idle_seconds: idle time after which a session ends.
    """

    uri: str
    client_options: Mapping[str, Any] = field(default_factory=dict)
    targets: Sequence[Target] = ()
    bind_ip: Sequence[str] = ("127.0.0.1",)
    port: int = 0
    certificate: Path | None = None
    is_behind_tls: bool = False
    proxies: Sequence[str] = ()
    sample_seconds: float = 5.0
    idle_seconds: float = 1800.0
    title: str = ""

    @property
    def cookie(self) -> str:
        """Name of the session's cookie. Browsers send cookies to all ports of a host, so each console has its own."""
        return f"shardwright_console_{sha256(f'{self.uri} {self.port}'.encode()).hexdigest()[:8]}"

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
