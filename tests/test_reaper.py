import os
import signal
import subprocess
import sys
from pathlib import Path

from shardwright.deploy.processes import ProcessIdentity

RUN_OF_TESTS = """
import os, subprocess, sys, tempfile
from tests.reaper import start_reaper

reaper = start_reaper()
left = subprocess.Popen([sys.executable, "-c", "import signal; print(flush=True); signal.pause()"],
                        stdout=subprocess.PIPE, start_new_session=True)
left.stdout.readline()
print(reaper.pid, left.pid, tempfile.mkdtemp(), flush=True)
sys.stdin.read()
"""


def test_nothing_outlives_a_run_that_was_killed(tmp_path: Path) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(
        [sys.executable, "-c", RUN_OF_TESTS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as run:
        assert run.stdout is not None
        reaper, left, folder = run.stdout.readline().split()
        processes = [ProcessIdentity.of(int(pid)) for pid in (reaper, left)]
        assert Path(folder).parent.parent == tmp_path
        run.send_signal(signal.SIGKILL)
    for process in processes:
        assert process is not None
        assert process.wait_ended(30)
    assert list(tmp_path.iterdir()) == []
