"""A ``shardwright sync`` process under measurement."""

import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from bson.json_util import loads

from bench.loadgen import BenchError

Progress = Mapping[str, Any]

_POLL_SECONDS: Final = 0.02
_WAIT_SECONDS: Final = 900.0


class SyncProcess:
    """A replication that follows its source until the block ends.

    Args:
        directory: for its log and the address of its API.
    """

    def __init__(self, directory: Path, source: str, target: str, *options: str) -> None:
        directory.mkdir(parents=True)
        self._state, self._log = directory, directory / "sync.log"
        command = [sys.executable, "-m", "shardwright.deploy.cli", "sync", source, target, "--continuous", *options]
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                command, stdout=log, stderr=log, env={**os.environ, "XDG_STATE_HOME": str(directory)}
            )
        self.pid = self._process.pid

    def __enter__(self) -> Self:
        """Return the process, which is running already."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the process."""
        self._process.terminate()
        self._process.wait()

    def post(self, what: str) -> None:
        """Post a request to its API: ``commit``, ``reverse``, ``pause`` or ``resume``."""
        request = urllib.request.Request(f"{self._address}/{what}", b"{}", method="POST")
        try:
            with urllib.request.urlopen(request):
                pass
        except urllib.error.HTTPError as error:
            raise BenchError(f"{what}: {error.read().decode()}") from error

    def progress(self) -> Progress:
        """Return its present progress; empty before it has an API."""
        if not self._published:
            return {}
        with urllib.request.urlopen(f"{self._address}/progress") as answer:
            found: Progress = loads(answer.read())["progress"]
            return found

    def wait(self, condition: Callable[[Progress], bool]) -> tuple[float, Progress]:
        """Wait until a condition on the progress is true; return the time, by the monotonic clock, and the progress."""
        deadline = time.monotonic() + _WAIT_SECONDS
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                raise BenchError(f"shardwright sync has ended: {self._log.read_text()}")
            progress = self.progress()
            if progress and condition(progress):
                return time.monotonic(), progress
            time.sleep(_POLL_SECONDS)
        raise BenchError(f"shardwright sync does not get on: {self._log.read_text()}")

    @property
    def _published(self) -> list[Path]:
        return list((self._state / "shardwright" / "sync").glob("*.json"))

    @property
    def _address(self) -> str:
        [published] = self._published
        return f"http://127.0.0.1:{json.loads(published.read_text())['port']}/api/v1"
