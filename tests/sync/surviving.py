"""The faults that every replication has to survive, at each of its phases, under writes."""

from collections.abc import Callable
from typing import Final

from tests.sync.moments import check_moment
from tests.sync.running import Ends, Progress, SyncProcess, contents, run_sync
from tests.sync.writers import Workload

DOCUMENTS: Final = 6000
SLOW_COPY: Final = ("--workers", "1", "--batch-documents", "200")


def copied(progress: Progress) -> int:
    """Return the number of copied documents."""
    found: int = progress.get("collectionCopy", {}).get("copiedDocuments", 0)
    return found


PHASES: Final[dict[str, Callable[[Progress], bool]]] = {
    "copy": lambda progress: copied(progress) > 100,
    "follow": lambda progress: progress["canCommit"],
    "verify": lambda progress: bool(progress.get("verification", {}).get("rounds")),
    "commit": lambda progress: progress["canCommit"],
}
"""The condition for the fault of each phase."""


def is_ready(progress: Progress) -> bool:
    """Whether nothing is left to do before a commit, or after it."""
    return bool(progress["canCommit"] or progress["state"] == "COMMITTED")


def survive(ends: Ends, workload: Workload, phase: str, fault: Callable[[SyncProcess], None], *options: str) -> None:
    """Replicate with a fault at a phase, continue in another process, and commit.

    No document is lost, doubled or stale, and copied documents are not copied again.

    Args:
        ends: both; the source has `DOCUMENTS` documents or a few more.
        workload: writes at the source.
        phase: of `PHASES`.
        fault: happens there; it may end the process.
        options: of the replication.
    """
    with ends.syncing("--reversible", *options, *SLOW_COPY) as process:
        process.wait_for(PHASES[phase])
        if phase == "commit":
            assert run_sync(ends.directory, "commit", process.id).status == 0
        fault(process)
        if process.process.poll() is None:
            process.wait_for(is_ready)
    # The source stays blocked if a commit was interrupted, which stops no process that continues.
    with ends.syncing("--reversible", *options) as process:
        progress = process.wait_for(is_ready)
        is_committed = progress["state"] == "COMMITTED"
        if not is_committed:
            progress = process.wait_followed(ends.source)
            check_moment(ends, progress)
            if phase != "copy":
                # What has been copied is not read again.
                assert progress["counters"]["documents_read"] < DOCUMENTS // 2, (progress, process.errors)
            workload.stop()
            process.wait_followed(ends.source)
            assert contents(ends.target) == contents(ends.source)
            report = run_sync(ends.directory, "verify", process.id)
            assert report.status == 0, report.output
            assert run_sync(ends.directory, "commit", process.id).status == 0
            process.wait_for(lambda progress: progress["state"] == "COMMITTED")
    workload.stop()
    assert contents(ends.target) == contents(ends.source)
