"""The console that `shardwright up` runs alongside a cluster in the foreground."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from shardwright.deploy.errors import DeployError

_STOP_SECONDS_MAX: Final = 10.0


@contextmanager
def console_beside(directory: Path, port: int | None) -> Iterator[str | None]:
    """Run a console within the block; yields the line with its address.

    Args:
        port: of the console, 0 for any free one; None for no console.
    """
    if port is None:
        yield None
        return
    log = directory / "logs" / "console.log"
    words = ["console", str(directory), "--port", str(port), "--log-file", str(log)]
    command = [sys.executable, "-m", "shardwright.deploy.cli", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            line = process.stdout.readline().strip() if process.stdout is not None else ""
            if not line:
                raise DeployError(f"the console did not start: see {log}")
            yield line
        finally:
            process.terminate()
            try:
                process.wait(_STOP_SECONDS_MAX)
            except subprocess.TimeoutExpired:
                process.kill()
