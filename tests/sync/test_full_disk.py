"""The disk of the target is full: its mongod ends, and the replication continues once there is room again."""

import errno
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.integration.waiting import eventually
from tests.sync.running import Ends, Progress, RestartableSet, contents
from tests.sync.surviving import SLOW_COPY, copied
from tests.sync.writers import DATABASE, prepare, writing

DISK_BYTES: Final = 600_000_000
FILLER: Final = "filler"
FILLED_BYTES: Final = 1_000_000
DOCUMENTS: Final = 3000
DOCUMENT_BYTES: Final = 10_000
"""They are random, so the storage engine cannot compress them."""


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A directory on a disk of limited size."""
    if os.geteuid():
        pytest.skip("only root can mount a disk of limited size")
    directory = tmp_path / "disk"
    directory.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", directory], check=True)
    try:
        yield directory
    finally:
        subprocess.run(["umount", directory], check=True)


@pytest.fixture
def small_target(mongod_binary: str, small_disk: Path) -> Iterator[RestartableSet]:
    """A replica set on that disk."""
    target = RestartableSet(mongod_binary, small_disk, "small")
    target.start()
    try:
        yield target
    finally:
        target.kill()


def fill(disk: Path) -> Path:
    """Fill a disk that other processes write to, too; return the file that takes the space."""
    filler = disk / FILLER
    with filler.open("wb", buffering=0) as file:
        while True:
            try:
                file.write(bytes(FILLED_BYTES))
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
                return filler


PHASES: Final[dict[str, Callable[[Progress], bool]]] = {
    "copy": lambda progress: copied(progress) > DOCUMENTS,
    "follow": lambda progress: progress["canCommit"],
}


@pytest.mark.exhaustive
@pytest.mark.parametrize("phase", PHASES)
def test_a_full_disk_at_the_target_delays_a_replication(
    plain: tuple[str, str], small_target: RestartableSet, small_disk: Path, phase: str, tmp_path: Path
) -> None:
    ends = Ends(plain[0], small_target.uri, tmp_path)
    ends.empty()
    try:
        prepare(ends.source)
        large = ends.source[DATABASE].large
        large.insert_many([{"_id": each, "data": os.urandom(DOCUMENT_BYTES)} for each in range(DOCUMENTS)])
        with writing(ends.source, seed=10, has_ddl=False) as workload, ends.syncing(*SLOW_COPY) as process:
            process.wait_for(PHASES[phase])
            filler = fill(small_disk)
            number = DOCUMENTS

            def has_ended() -> bool:
                nonlocal number
                number += 1
                large.insert_one({"_id": number, "data": os.urandom(DOCUMENT_BYTES)})
                return small_target.has_ended

            eventually(has_ended, what="the mongod with the full disk has ended")
            filler.unlink()
            small_target.start()
            process.wait_for(lambda progress: progress["canCommit"])
            progress = process.wait_followed(ends.source)
            everything = sum(len(each[0]) for each in contents(ends.source).values() if isinstance(each, tuple))
            assert progress["counters"]["documents_read"] < 1.5 * everything
            workload.stop()
            process.wait_followed(ends.source)
            assert contents(ends.target) == contents(ends.source)
    finally:
        (small_disk / FILLER).unlink(missing_ok=True)
        if small_target.has_ended:
            small_target.start()
        ends.close()
