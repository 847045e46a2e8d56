"""Starting and stopping clusters through the launcher's command."""

import json
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from shardwright.mongosh_compat.jstests.process_groups import ProcessGroups

_START_SECONDS_MAX: Final = 240.0
_STOP_SECONDS_MAX: Final = 120.0


class LauncherError(Exception):
    """Failure to start a cluster; the message has the launcher's output."""


@dataclass(frozen=True)
class Launcher:
    """The launcher of clusters; its command has no arguments."""

    command: Sequence[str]
    groups: ProcessGroups

    def up(self, directory: Path, *options: str) -> dict[str, Any]:
        """Start a cluster; returns the document that describes it.

        Raises:
            LauncherError: it cannot be started.
            StoppedError: the run was stopped.
        """
        arguments = ["up", "--detach", "--json", "--port", "0", "--dir", str(directory), *options]
        with tempfile.TemporaryFile() as output:
            status = self.groups.run([*self.command, *arguments], output, _START_SECONDS_MAX)
            output.seek(0)
            text = output.read().decode(errors="replace")
        if status != 0:
            raise LauncherError(f"no cluster could be started:\n{text}")
        document: dict[str, Any] = json.loads(text.splitlines()[-1])
        return document

    def remove(self, directory: Path) -> None:
        """Stop the clusters in or directly below a directory, even after the run was stopped; remove their files."""
        for cluster in [directory, *directory.glob("cluster*")]:
            if (cluster / "cluster.json").exists():
                subprocess.run(
                    [*self.command, "down", "--dir", str(cluster)],
                    capture_output=True,
                    timeout=_STOP_SECONDS_MAX,
                    check=False,
                )
        shutil.rmtree(directory, ignore_errors=True)
