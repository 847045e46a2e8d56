"""The second run, on clusters with a key file and TLS (``pytest --closed``, part of ``make test``).

Clients of routers are the first user, whose role is root; those of other processes log in as a part of the cluster. So
what is tried is that everything also works for users, and that processes that authenticate still find each other, also
while some of them die. `TAKES_PART` lists the tests. A quick run takes some of them, and the turn of each comes within
`DAYS` days.
"""

from collections.abc import Iterable, Mapping
from typing import Final

import pytest

DAYS: Final = 3

TAKES_PART: Final = tuple(
    f"tests/{name}"
    for name in (
        "integration/test_chunks.py",
        "integration/test_cluster_time.py",
        "integration/test_crud_asyncio.py",
        "integration/test_crud_pymongo.py",
        "integration/test_current_op.py",
        "integration/test_cursors.py",
        "integration/test_explain.py",
        "integration/test_local_operations.py",
        "integration/test_moves.py",
        "integration/test_mutated_commands.py",
        "integration/test_node.py",
        "integration/test_processes.py",
        "integration/test_reserved_sessions.py",
        "integration/test_sessions.py",
        "integration/test_sizes_and_frames.py",
        "integration/test_streaming_hello.py",
        "integration/test_transactions.py",
        "integration/test_change_streams.py::test_events_beside_moves_come_once_and_in_order",
        "integration/test_change_streams.py::test_resuming_with_another_router",
        "integration/test_owner_changes.py::test_in_a_transaction_after_other_statements",
        "integration/test_joins.py::test_a_mongod_reads_many_documents_from_the_router",
        "integration/test_snapshots.py",
        "integration/test_move_primary.py::test_no_acknowledged_write_is_lost_or_doubled",
        "integration/test_failover.py::test_step_down_during_writes",
        "integration/test_failover.py::test_a_change_stream_goes_on",
        "migration/test_failover.py::test_step_down",
        "migration/test_many_moves.py::test_many_moves_in_a_row_under_writes",
        "resharding/test_reshard_collection.py::test_writers_lose_nothing",
        "resharding/test_elections.py::test_election",
        "router/test_slow_log.py",
    )
)
"""How the identifiers of tests begin; each entry has its turn as a whole.

Most of ``router/`` compares a router with a mongod, to which no user of the cluster can log in; ``access_control/`` has
such comparisons with the same users on both.
"""

NOT_CLOSED: Final[Mapping[str, str]] = {
    "tests/integration/test_local_operations.py::test_operations_are_killed_by_the_key_of_their_client": (
        "`_killOperations` is for the cluster alone"
    ),
    "tests/integration/test_session_fields.py::test_wrong_session_fields": (
        "compares with a mongod, to which only a part of the cluster can log in, and that may name users in `lsid`"
    ),
    "tests/integration/test_sizes_and_frames.py::test_half_closed_connection": (
        "one direction of a connection with TLS cannot be closed"
    ),
    "tests/mongosh/test_jstests.py": "suites start shells and connections of their own, which do not log in",
    "tests/mongosh/test_scripts.py::test_session[sharding.js]": "opens a connection by its address alone",
}
"""Tests and files that have to be open, and why."""


def chosen(items: Iterable[pytest.Item], seed: int | None) -> tuple[list[pytest.Item], list[pytest.Item]]:
    """Tests to run and tests to leave out.

    Args:
        items: all tests that were collected.
        seed: whose turn it is; None if all of them are run.
    """
    turns = TAKES_PART if seed is None else TAKES_PART[seed % DAYS :: DAYS]
    kept: list[pytest.Item] = []
    left_out: list[pytest.Item] = []
    for item in items:
        takes_part = item.nodeid.startswith(turns) and not item.nodeid.startswith(tuple(NOT_CLOSED))
        (kept if takes_part else left_out).append(item)
    return kept, left_out
