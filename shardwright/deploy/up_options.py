"""The options of ``shardwright up``."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from shardwright.deploy.daemon_options import DaemonOptions
from shardwright.deploy.errors import DeployError
from shardwright.deploy.modes import KEY_FILE
from shardwright.deploy.topology import Size

DEFAULT_PORT: Final = 27017
DEFAULT_START_TIMEOUT: Final = 120.0

SHARDS_MAX: Final = 100
ROUTERS_MAX: Final = 100
MEMBERS_MAX: Final = 7
"""The maximum number of voting members of a MongoDB replica set."""
WORKERS_MAX: Final = 64
"""The maximum number of workers that a cursor id can identify."""


@dataclass(frozen=True)
class UpOptions:
    """The options given to ``shardwright up``; ``None`` for omitted ones.

    Attributes:
        port: the port of the first router; 0 chooses a free one.
        log_rotate: action on a log file at rotation, ``rename`` or ``reopen``.
        parameters: additional or changed server parameters of the shards.
        daemon_options: additional or changed options of the daemons.
        separate_sockets: whether each daemon of a new cluster gets its own socket directory.
        auth: whether a new cluster gets access control; an existing one keeps its setting.
        tls: whether a new cluster uses TLS; an existing one keeps its setting.
        cluster_auth_mode: how the processes of a new cluster authenticate to each other.
        start_timeout: the maximum duration of the start, in seconds.
    """

    shards: int | None = None
    members: int | None = None
    config_members: int | None = None
    routers: int | None = None
    port: int | None = None
    mongod: str | None = None
    workers: int | None = None
    cache_gb: float | None = None
    log_rotate: str | None = None
    parameters: Mapping[str, str] = field(default_factory=dict)
    daemon_options: DaemonOptions = field(default_factory=dict)
    separate_sockets: bool = False
    auth: bool = False
    tls: bool = False
    cluster_auth_mode: str | None = None
    start_timeout: float = DEFAULT_START_TIMEOUT

    def size(self) -> Size:
        """Return the size of a new cluster.

        Raises:
            DeployError: a number is too small or too large, or the options contradict each other.
        """
        self._check_maxima()
        if self.cluster_auth_mode not in (None, KEY_FILE) and not (self.auth and self.tls):
            raise DeployError(f"--cluster-auth-mode {self.cluster_auth_mode} needs --auth and --tls")
        return Size.of(self.shards, self.members, self.config_members, self.routers)

    def _check_maxima(self) -> None:
        given = {
            "--shards": (self.shards, SHARDS_MAX),
            "--members": (self.members, MEMBERS_MAX),
            "--config-members": (self.config_members, MEMBERS_MAX),
            "--routers": (self.routers, ROUTERS_MAX),
            "--workers": (self.workers, WORKERS_MAX),
        }
        for option, (number, maximum) in given.items():
            if number is not None and number > maximum:
                raise DeployError(f"{option} must be at most {maximum}, not {number}")
