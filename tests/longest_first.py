"""The choice of the next test file for a worker of pytest-xdist.

By itself xdist begins with the files of the most tests, and the longest file, which has few, decides when the run ends.
Here the longest files begin. Of the others a worker takes the ones whose servers it has started already, because every
worker that needs them starts servers of its own. Among equals the day decides.

``--minutes`` bounds a run on a machine of unknown speed. The longest files would leave no time for the others, so each
of them has its turn every third day (`has_turn`). Files that were not begun in time are left out, and the summary names
them.
"""

import time
from collections.abc import Iterable, Mapping, Set
from typing import TYPE_CHECKING, Any, Final

import pytest
from xdist.scheduler.loadfile import LoadFileScheduling

from tests.sampling import lot_of

if TYPE_CHECKING:
    from xdist.workermanage import WorkerController

LEFT_OUT: Final = pytest.StashKey[list[str]]()
"""The files for which a run had no time left."""

SECONDS: Final[Mapping[str, int]] = {
    "tests/migration/test_fault_matrix.py": 589,
    "tests/deploy/test_launcher.py": 451,
    "tests/migration/test_failover.py": 335,
    "tests/deployment/test_page.py": 240,
    "tests/integration/faults/test_restarts.py": 195,
    "tests/migration/test_abort.py": 175,
    "tests/migration/test_many_moves.py": 167,
    "tests/integration/change_streams/test_change_streams.py": 150,
    "tests/deploy/test_rolling_upgrade.py": 150,
    "tests/sync/test_replication.py": 90,
    "tests/sync/test_odd_contents.py": 70,
    "tests/sync/test_catalog.py": 70,
    "tests/sync/test_requests.py": 60,
    "tests/sync/test_reverse.py": 50,
    "tests/sync/test_verification.py": 55,
    "tests/sync/test_faults.py": 45,
    "tests/sync/test_cluster_faults.py": 60,
    "tests/sync/test_moves.py": 45,
    "tests/sync/test_sharding.py": 50,
    "tests/sync/test_users.py": 50,
    "tests/deploy/test_directories.py": 99,
    "tests/pymongo_suite/test_part_crud.py": 90,
    "tests/sharding/targeting/test_targeting_is_safe.py": 89,
    "tests/shardd/splitting/test_growing_chunks.py": 100,
    "tests/shardd/orphans/test_kept_cursors.py": 90,
    "tests/integration/faults/test_frozen_hosts.py": 90,
    "tests/integration/faults/test_failover.py": 86,
    "tests/test_examples.py": 80,
    "tests/pymongo_suite/test_part_collections.py": 80,
    "tests/pymongo_suite/test_part_rest.py": 80,
    "tests/shardd/migration/donor/test_recovery.py": 67,
    "tests/migration/test_properties.py": 65,
    "tests/pymongo_suite/test_part_sessions.py": 60,
    "tests/router/test_reads_without_a_shard.py": 60,
    "tests/shardd/operations/test_terms.py": 54,
    "tests/wire/test_rawbson.py": 54,
    "tests/shardd/session_history/test_history_moves.py": 53,
    "tests/integration/crud/test_mutated_commands.py": 53,
    "tests/shardd/ddl/test_drops.py": 53,
    "tests/shardd/ddl/test_resumed_changes.py": 52,
    "tests/shardd/operations/test_versioned_operations.py": 52,
    "tests/integration/faults/test_faults.py": 51,
    "tests/mongosh/test_scripts.py": 50,
    "tests/pymongo_suite/test_part_gridfs.py": 45,
}
"""Seconds that a file takes, for files of forty seconds and more; all others count as equally short."""

LONG_SECONDS: Final = 80
"""Files as long as that begin, whatever servers they need."""

_LONG: Final = sorted((path for path, seconds in SECONDS.items() if seconds >= LONG_SECONDS), key=SECONDS.__getitem__)

TURNS: Final = 3
"""In a run with a limit, a long file has its turn once in so many days."""

SHARED_SERVERS: Final[Mapping[str, str]] = {
    "access_control": "closed cluster",
    "integration": "cluster",
    "mongosh": "cluster",
    "pymongo_suite": "cluster",
    "router": "cluster",
    "interop": "genuine cluster",
    "shardd": "mini cluster",
    "configd": "config servers",
    "sync": "sources and targets",
}
"""By folder, the servers that its files share; what else there is starts quickly, or serves one file only."""


def servers_of(path: str) -> str | None:
    """The servers that a test file shares with others, None if there are none."""
    return SHARED_SERVERS.get(path.split("/")[1])


def has_turn(path: str, day: int) -> bool:
    """Whether a run with a limit contains a file: any short one, and a third of the long ones, others each day.

    Args:
        path: the file.
        day: its number, or any seed.
    """
    return path not in _LONG or (_LONG.index(path) + day) % TURNS == 0


def next_file(waiting: Iterable[str], done_here: Iterable[str], done_elsewhere: Iterable[str]) -> str:
    """Return the file that a worker runs next.

    Args:
        waiting: the files that no worker has; at least one.
        done_here: the files that this worker has run or begun.
        done_elsewhere: the files of the other workers.
    """
    here, elsewhere = _started(done_here), _started(done_elsewhere)

    def rank(path: str) -> tuple[bool, int, int, float]:
        seconds = SECONDS.get(path, 0)
        servers = servers_of(path)
        cost = 0 if servers is None or servers in here else 2 if servers in elsewhere else 1
        is_long = seconds >= LONG_SECONDS
        return not is_long, 0 if is_long else cost, -seconds, lot_of(path)

    return min(waiting, key=rank)


def _started(files: Iterable[str]) -> Set[str | None]:
    return {servers_of(path) for path in files}


class LongestFirst(LoadFileScheduling):  # type: ignore[misc] # xdist comes without types
    """Files as units of work, given out by `next_file`."""

    workqueue: Any
    assigned_work: "Mapping[WorkerController, Mapping[str, object]]"

    def __init__(self, config: pytest.Config, log: object) -> None:
        super().__init__(config, log)
        minutes: float | None = config.option.minutes
        self._ends_at = None if minutes is None else time.monotonic() + minutes * 60
        self._left_out = config.stash.setdefault(LEFT_OUT, [])

    def _reschedule(self, node: "WorkerController") -> None:
        if self._ends_at is not None and time.monotonic() >= self._ends_at:
            self._left_out += self.workqueue
            self.workqueue.clear()
        super()._reschedule(node)

    def _assign_work_unit(self, node: "WorkerController") -> None:
        elsewhere = (path for other, files in self.assigned_work.items() if other is not node for path in files)
        chosen = next_file(self.workqueue, self.assigned_work.get(node, {}), elsewhere)
        self.workqueue.move_to_end(chosen, last=False)
        super()._assign_work_unit(node)
