"""The process that keeps the workers of a router running."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from shardwright.deploy.ports import PortReservation
from shardwright.router.processes.workers import CRASHES_MAX, WINDOW_SECONDS, CrashRate
from tests.integration.routers import END_SECONDS_MAX, worker_of
from tests.integration.waiting import eventually


def test_crashes_that_are_far_apart_are_no_reason_to_give_up() -> None:
    crashes = CrashRate()
    for number in range(10 * CRASHES_MAX):
        crashes.note(number * WINDOW_SECONDS / CRASHES_MAX)
        assert not crashes.is_too_high


def test_many_crashes_in_a_short_time_are() -> None:
    crashes = CrashRate()
    for number in range(CRASHES_MAX):
        crashes.note(1_000 + number / 10)
        assert not crashes.is_too_high
    crashes.note(1_002)
    assert crashes.is_too_high


@pytest.mark.parametrize("workers", [2])
def test_folder_of_the_working_directory_is_not_imported(tmp_path: Path, workers: int) -> None:
    """Workers run our package even if the working directory contains a folder called ``router``."""
    (tmp_path / "router").mkdir()
    marker = tmp_path / "executed"
    (tmp_path / "router" / "__init__.py").write_text(f"open({str(marker)!r}, 'w')\nraise SystemExit(1)\n")
    with PortReservation() as ports:
        port, nobody = ports.hold_free(), ports.hold_free()
    command = [sys.executable, "-P", "-m", "shardwright.router.main", "--port", str(port), "--workers", str(workers)]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"}
    process = subprocess.Popen(
        [*command, "--configdb", f"config/127.0.0.1:{nobody}"],
        cwd=tmp_path,
        env=environment,
        stderr=subprocess.DEVNULL,
    )
    try:
        eventually(lambda: marker.exists() or worker_of(f"127.0.0.1:{port}"), what="a worker runs")
        assert not marker.exists()
    finally:
        process.terminate()
        assert process.wait(END_SECONDS_MAX) == 0


ENDED_WHILE_RESTARTING = """
import os, signal, subprocess, sys

from shardwright.router.service import run

start, started = subprocess.Popen, []

def start_and_end(command, **options):
    started.append(command)
    if len(started) <= 2:
        return start([sys.executable, "-c", "raise SystemExit(3)"], **options)
    os.kill(os.getpid(), signal.SIGTERM)
    return start([sys.executable, "-c", "import time; time.sleep(3600)"], **options)

subprocess.Popen = start_and_end
sys.exit(run(["--configdb", "config/127.0.0.1:1", "--port", "0", "--workers", "2"]))
"""


def test_worker_that_is_started_again_while_the_router_ends_is_ended_too() -> None:
    process = subprocess.Popen([sys.executable, "-c", ENDED_WHILE_RESTARTING], stderr=subprocess.DEVNULL)
    try:
        assert process.wait(END_SECONDS_MAX) == 0
    finally:
        process.kill()
        process.wait()
