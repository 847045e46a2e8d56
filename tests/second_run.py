"""The tests that run a second time, on clusters with access control (``pytest --auth``).

Their clients log in as a part of the cluster, so that what is tried is whether its processes still find each other: at
every kind of change that several of them make together, and when some of them die meanwhile.
"""

from collections.abc import Iterable
from typing import Final

import pytest

_TESTS: Final = tuple(
    f"tests/{name}"
    for name in (
        "integration/test_crud_pymongo.py",
        "integration/test_transactions.py::test_writes_of_two_shards_are_seen_together",
        "integration/test_transactions.py::test_any_worker_of_a_router_carries_any_statement",
        "integration/test_transactions.py::test_another_router_learns_the_outcome_by_the_token",
        "integration/test_transactions.py::test_killed_session_ends_its_transaction",
        "integration/test_moves.py::test_documents_move",
        "integration/test_change_streams.py::test_events_beside_moves_come_once_and_in_order",
        "integration/test_change_streams.py::test_resuming_with_another_router",
        "integration/test_sessions.py::test_cursors_end_if_another_router_has_ended_the_session",
        "integration/test_processes.py::test_cursors_of_a_router_of_several_workers",
        "integration/test_owner_changes.py::test_in_a_transaction_after_other_statements",
        "integration/test_cursors.py::test_two_shards_and_a_router_serve_many_cursors_at_once",
        "integration/test_joins.py::test_a_mongod_reads_many_documents_from_the_router",
        "integration/test_snapshots.py::test_a_snapshot_from_before_a_move",
        "integration/test_move_primary.py::test_no_acknowledged_write_is_lost_or_doubled",
        "integration/test_failover.py::test_step_down_during_writes",
        "integration/test_failover.py::test_a_change_stream_goes_on",
        "migration/test_failover.py::test_step_down",
        "migration/test_many_moves.py::test_many_moves_in_a_row_under_writes",
        "resharding/test_reshard_collection.py::test_writers_lose_nothing",
        "resharding/test_elections.py::test_election",
    )
)
"""How the identifiers of tests begin."""


def chosen(items: Iterable[pytest.Item]) -> tuple[list[pytest.Item], list[pytest.Item]]:
    """Tests to run and tests to leave out.

    Args:
        items: all tests that were collected.
    """
    kept: list[pytest.Item] = []
    left_out: list[pytest.Item] = []
    for item in items:
        (kept if item.nodeid.startswith(_TESTS) else left_out).append(item)
    return kept, left_out
