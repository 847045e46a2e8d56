"""The second run, on clusters with a key file and TLS (``pytest --closed``, part of ``make test``).

Clients of routers are the first user, whose role is root. Clients of other processes log in as members of the cluster.
So the run checks that everything also works for users, and that processes that authenticate still find each other, also
while some of them die. All of ``tests/integration`` takes part except `NOT_CLOSED`, and `FURTHER` from other folders. A
quick run takes some of the files, and the turn of each comes within `DAYS` days.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

import pytest

DAYS: Final = 7

FURTHER: Final = (
    "tests/migration/test_failover.py::test_step_down",
    "tests/migration/test_many_moves.py::test_many_moves_in_a_row_under_writes",
    "tests/resharding/test_reshard_collection.py::test_writers_lose_nothing",
    "tests/resharding/test_elections.py::test_election",
    "tests/router/test_slow_log.py",
)
"""Tests of other folders, as prefixes of their identifiers.

Most of ``router/`` compares a router with a mongod, to which no user of the cluster can log in; ``access_control/`` has
such comparisons with the same users on both.
"""

NOT_CLOSED: Final[Mapping[str, str]] = {
    "tests/integration/security/test_access_control.py": "starts closed clusters of its own",
    "tests/integration/security/test_cluster_auth_mode.py": "starts closed clusters of its own",
    "tests/integration/security/test_secrets.py": "starts closed clusters of its own",
    "tests/integration/security/test_tls_cluster.py": "starts closed clusters of its own",
    "tests/integration/security/test_tls_modes.py": "starts closed clusters of its own",
    "tests/integration/faults/test_added_shard.py": "adds a shard that has no access control",
    "tests/integration/ddl/test_shards_during_changes.py": "adds a shard that has no access control",
    "tests/integration/aggregation/test_aggregation_errors.py::test_halves_are_checked_against_the_stable_api": (
        "internal stages are for the cluster alone"
    ),
    "tests/integration/aggregation/test_aggregation_errors.py::test_stages_of_servers": (
        "internal stages are for the cluster alone"
    ),
    "tests/integration/sessions/test_cluster_time.py::test_a_time_without_a_signature_changes_nothing": (
        "such a time is refused from a user (tests/access_control/test_hostile_connections.py)"
    ),
    "tests/integration/ddl/test_created_indexes.py::test_an_index_is_undone_though_user_writes_are_blocked_meanwhile": (
        "the first user has the privilege bypassWriteBlockingMode"
    ),
    "tests/integration/ddl/test_granularity.py::test_a_read_that_has_resolved_the_view_before": (
        "internal stages are for the cluster alone"
    ),
    "tests/integration/security/test_key_rotation.py": "runs on a cluster without a launcher, which is always open",
    "tests/integration/joins/test_join_argument_errors.py::test_joined_pipelines_are_checked_against_the_stable_api": (
        "internal stages are for the cluster alone"
    ),
    "tests/integration/crud/test_local_operations.py::test_operations_are_killed_by_the_key_of_their_client": (
        "`_killOperations` is for the cluster alone"
    ),
    "tests/integration/crud/test_owner_changes.py::test_what_a_client_may_bypass": (
        "the first user has the privilege bypassWriteBlockingMode, and cannot ask for it in a field"
    ),
    "tests/integration/sessions/test_session_fields.py::test_wrong_session_fields": (
        "compares with a mongod, to which only a part of the cluster can log in, and that may name users in `lsid`"
    ),
    "tests/integration/crud/test_sizes_and_frames.py::test_half_closed_connection": (
        "one direction of a connection with TLS cannot be closed"
    ),
    "tests/integration/operators/test_traces.py::test_the_field_of_routers_is_unknown_to_clients": (
        "the first user is authorized for it no more than any other (Unauthorized)"
    ),
    "tests/integration/operators/test_traces.py::test_clients_who_have_to_log_in_cause_no_spans_before": (
        "starts a closed cluster of its own"
    ),
    "tests/integration/security/test_user_write_block.py": "the first user has the privilege bypassWriteBlockingMode",
    "tests/mongosh/test_jstests.py": "suites start shells and connections of their own, which do not log in",
    "tests/mongosh/test_scripts.py::test_session[sharding.js]": "opens a connection by its address alone",
}
"""Tests and files that have to be open, and why."""


def files() -> tuple[str, ...]:
    """Return the files of ``tests/integration`` that can be run on closed clusters, in the order of their names."""
    tests = Path(__file__).parent
    names = (f"tests/{path.relative_to(tests).as_posix()}" for path in tests.glob("integration/*/test_*.py"))
    return tuple(sorted(name for name in names if name not in NOT_CLOSED))


def chosen(items: Iterable[pytest.Item], seed: int | None) -> tuple[list[pytest.Item], list[pytest.Item]]:
    """Tests to run and tests to leave out.

    Args:
        items: all tests that were collected.
        seed: whose turn it is; None if all of them are run.
    """
    every = (*(f"{name}::" for name in files()), *FURTHER)
    turns = every if seed is None else every[seed % DAYS :: DAYS]
    kept: list[pytest.Item] = []
    left_out: list[pytest.Item] = []
    for item in items:
        takes_part = item.nodeid.startswith(turns) and not item.nodeid.startswith(tuple(NOT_CLOSED))
        (kept if takes_part else left_out).append(item)
    return kept, left_out
