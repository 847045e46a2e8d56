import subprocess
import sys
from pathlib import Path

import pytest

from tests.longest_first import LONG_SECONDS, SECONDS, SHARED_SERVERS, TURNS, has_turn, next_file

LONG = max(SECONDS, key=lambda path: SECONDS[path])
READS, WRITES = "tests/router/test_reads.py", "tests/integration/test_writes.py"
DROPS, HASHING = "tests/shardd/test_drops.py", "tests/sharding/test_hashing.py"


def test_the_longest_comes_first() -> None:
    assert SECONDS[LONG] >= LONG_SECONDS
    assert next_file([READS, *SECONDS, HASHING], [], []) == LONG


def test_a_worker_stays_with_the_servers_that_it_has() -> None:
    assert next_file([DROPS, READS], [WRITES], [DROPS]) == READS
    assert next_file([DROPS, READS], [DROPS], [WRITES]) == DROPS


def test_servers_that_nobody_has_are_started_before_those_that_another_worker_has() -> None:
    assert next_file([READS, DROPS], [HASHING], [WRITES]) == DROPS


def test_what_is_left_is_run_wherever_it_is_left() -> None:
    assert next_file([READS], [DROPS], [WRITES]) == READS


def test_each_long_file_has_its_turn_every_third_day() -> None:
    days = [{path for path in SECONDS if has_turn(path, day)} for day in range(739_000, 739_000 + TURNS)]
    assert set.union(*days) == set(SECONDS)
    for path, seconds in SECONDS.items():
        assert sum(path in day for day in days) == (1 if seconds >= LONG_SECONDS else TURNS)
    assert has_turn(READS, 0)


def test_files_and_folders_exist() -> None:
    assert [path for path in SECONDS if not Path(path).is_file()] == []
    assert [folder for folder in SHARED_SERVERS if not Path("tests", folder).is_dir()] == []


def test_files_for_which_there_is_no_time_are_left_out_and_named(pytestconfig: pytest.Config, tmp_path: Path) -> None:
    folder = tmp_path / "tests"
    folder.mkdir()
    for name in ("first", "second", "third", "fourth", "fifth"):
        (folder / f"test_{name}.py").write_text("def test_it():\n    pass\n\ndef test_again():\n    pass\n")
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "tests.conftest",
        "-p",
        "no:cacheprovider",
        "--rootdir",
        str(tmp_path),
    ]
    options = ["--numprocesses", "1", "--dist", "loadfile", "--minutes", "0", str(folder)]
    run = subprocess.run([*command, *options], cwd=pytestconfig.rootpath, capture_output=True, text=True, check=True)
    assert "4 files left out: 0 minutes have passed" in run.stdout
    assert "2 passed" in run.stdout
