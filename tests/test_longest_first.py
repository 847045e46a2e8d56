from pathlib import Path

from tests.longest_first import LONG_SECONDS, SECONDS, SHARED_SERVERS, next_file

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


def test_files_and_folders_exist() -> None:
    assert [path for path in SECONDS if not Path(path).is_file()] == []
    assert [folder for folder in SHARED_SERVERS if not Path("tests", folder).is_dir()] == []
