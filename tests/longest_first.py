"""Which test file a worker of pytest-xdist runs next.

By itself xdist begins with the files of the most tests, and the longest file, which has few, decides when the run ends.
Here the longest begin. Of the others a worker takes those that need the servers that it has started already, since
every worker that needs them starts servers of its own.
"""

from collections.abc import Iterable, Mapping, Set
from typing import TYPE_CHECKING, Any, Final

from xdist.scheduler.loadfile import LoadFileScheduling

if TYPE_CHECKING:
    from xdist.workermanage import WorkerController

SECONDS: Final[Mapping[str, int]] = {
    "tests/migration/test_fault_matrix.py": 589,
    "tests/deploy/test_launcher.py": 451,
    "tests/migration/test_failover.py": 335,
    "tests/integration/test_restarts.py": 195,
    "tests/migration/test_abort.py": 175,
    "tests/migration/test_many_moves.py": 167,
    "tests/integration/test_change_streams.py": 150,
    "tests/sync/test_replication.py": 100,
    "tests/deploy/test_directories.py": 99,
    "tests/pymongo_suite/test_part_crud.py": 90,
    "tests/sharding/targeting/test_targeting_is_safe.py": 89,
    "tests/shardd/splitting/test_growing_chunks.py": 100,
    "tests/shardd/orphans/test_kept_cursors.py": 90,
    "tests/integration/test_frozen_hosts.py": 90,
    "tests/integration/test_failover.py": 86,
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
    "tests/integration/test_mutated_commands.py": 53,
    "tests/shardd/ddl/test_drops.py": 53,
    "tests/shardd/ddl/test_resumed_changes.py": 52,
    "tests/shardd/operations/test_versioned_operations.py": 52,
    "tests/integration/test_faults.py": 51,
    "tests/mongosh/test_scripts.py": 50,
    "tests/pymongo_suite/test_part_gridfs.py": 45,
}
"""How long a file takes, for those of forty seconds and more; all others count as equally short."""

LONG_SECONDS: Final = 80
"""Files as long as that begin, whatever servers they need."""

SHARED_SERVERS: Final[Mapping[str, str]] = {
    "access_control": "closed cluster",
    "integration": "cluster",
    "mongosh": "cluster",
    "pymongo_suite": "cluster",
    "router": "cluster",
    "interop": "genuine cluster",
    "shardd": "mini cluster",
    "configd": "config servers",
}
"""By folder, the servers that its files share; what else there is starts quickly, or serves one file only."""


def servers_of(path: str) -> str | None:
    """The servers that a test file shares with others, None if there are none."""
    return SHARED_SERVERS.get(path.split("/")[1])


def next_file(waiting: Iterable[str], done_here: Iterable[str], done_elsewhere: Iterable[str]) -> str:
    """The file that a worker runs next.

    Args:
        waiting: the files that no worker has; at least one.
        done_here: the files that this worker has run or begun.
        done_elsewhere: those of the other workers.
    """
    here, elsewhere = _started(done_here), _started(done_elsewhere)

    def rank(path: str) -> tuple[bool, int, int]:
        seconds = SECONDS.get(path, 0)
        servers = servers_of(path)
        cost = 0 if servers is None or servers in here else 2 if servers in elsewhere else 1
        is_long = seconds >= LONG_SECONDS
        return not is_long, 0 if is_long else cost, -seconds

    return min(waiting, key=rank)


def _started(files: Iterable[str]) -> Set[str | None]:
    return {servers_of(path) for path in files}


class LongestFirst(LoadFileScheduling):  # type: ignore[misc] # xdist comes without types
    """Files as units of work, given out by `next_file`."""

    workqueue: Any
    assigned_work: "Mapping[WorkerController, Mapping[str, object]]"

    def _assign_work_unit(self, node: "WorkerController") -> None:
        elsewhere = (path for other, files in self.assigned_work.items() if other is not node for path in files)
        chosen = next_file(self.workqueue, self.assigned_work.get(node, {}), elsewhere)
        self.workqueue.move_to_end(chosen, last=False)
        super()._assign_work_unit(node)
