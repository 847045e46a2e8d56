"""A lane of suites that run one after the other, and the cluster that they share."""

from pathlib import Path
from typing import Final

from pymongo import MongoClient

from shardwright.mongosh_compat.jstests.launcher import Launcher

_OPTIONS: Final = (
    *("--orphan-cleanup-delay", "0"),
    *("--set-parameter", "enableTestCommands=1", "--set-parameter", "diagnosticDataCollectionEnabled=false"),
)
_KEPT: Final = ("admin", "config", "local")


class Lane:
    """A lane. Its cluster is started for the first suite that needs it.

    A deployment at a given URI replaces the cluster. Its databases are the user's and are not dropped.
    """

    def __init__(self, directory: Path, launcher: Launcher, uri: str | None = None) -> None:
        self._directory = directory
        self._launcher = launcher
        self._given = uri
        self._uri: str | None = None

    def uri(self) -> str:
        """Return the deployment for a suite that uses the global ``db``; without user databases, unless it was given.

        Raises:
            LauncherError: the cluster cannot be started.
            StoppedError: the run was stopped.
        """
        if self._given is not None:
            return self._given
        if self._uri is None:
            self._uri = str(self._launcher.up(self._directory, *_OPTIONS)["uri"])
        self._empty(self._uri)
        return self._uri

    def close(self) -> None:
        """Stop the cluster, if there is one."""
        self._launcher.remove(self._directory)

    @staticmethod
    def _empty(uri: str) -> None:
        with MongoClient[dict[str, object]](uri) as client:
            for name in client.list_database_names():
                if name not in _KEPT:
                    client.drop_database(name)
