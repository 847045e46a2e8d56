"""No process and no temporary folder outlives the tests, however they end.

Fixtures end the processes that they start. But a process that runs tests may be killed, and pytest-xdist kills its
workers ten seconds after an interruption. So a second process, the reaper, waits for the end of the one that runs
tests. Then it kills every process that has inherited the variable `MARK` of that run, and removes the run's temporary
folder.
"""

import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

MARK: Final = "SHARDWRIGHT_TEST_RUN"
"""Environment variable of all processes of a run: its folder for temporary files."""


def start_reaper() -> "subprocess.Popen[bytes]":
    """Give this process, and its future children, a mark and a folder for temporary files of its own.

    The name of the folder is short, because paths of UNIX sockets begin with it. pytest's own folders stay where they
    are: it keeps the folders of the last runs, so that the logs of a failure can be read.

    Returns:
        the reaper: it ends, and all is gone, soon after its standard input is closed.
    """
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())
    folder = tempfile.mkdtemp(prefix="sw-")
    reaper = subprocess.Popen([sys.executable, "-P", __file__, folder], stdin=subprocess.PIPE, start_new_session=True)
    os.environ[MARK] = os.environ["TMPDIR"] = tempfile.tempdir = folder
    return reaper


def main(folder: str) -> None:
    """Wait for the end of standard input, which only the process that runs tests has open, and clean up after it."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    sys.stdin.read()
    # Until nothing is found: a process may start another one just before it is killed.
    while left := list(_marked(f"{MARK}={folder}".encode())):
        for pid, command in left:
            print(f"left behind by tests: {pid} {command}", file=sys.stderr)
            try:
                descriptor = os.pidfd_open(pid)
            except ProcessLookupError:
                continue
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
            select.select([descriptor], [], [])
            os.close(descriptor)
    shutil.rmtree(folder, ignore_errors=True)


def _marked(mark: bytes) -> Iterator[tuple[int, str]]:
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            try:
                is_marked = mark in (process / "environ").read_bytes().split(b"\0")
                command = (process / "cmdline").read_bytes()
            except (ProcessLookupError, FileNotFoundError, PermissionError):
                continue
            if is_marked:
                yield int(process.name), command.replace(b"\0", b" ").decode(errors="replace")


if __name__ == "__main__":
    main(sys.argv[1])
