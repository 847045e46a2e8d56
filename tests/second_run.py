"""The second run, on clusters with a key file and TLS (``pytest --closed``, part of ``make test``).

Clients of routers are the first user, whose role is root; those of other processes log in as a part of the cluster. So
what is tried is that everything also works for users, and that processes that authenticate still find each other, also
while some of them die. Every test that needs a cluster takes part, unless it is in `NOT_CLOSED`. A quick run takes some
of their files, and each file's turn comes within `DAYS` days.
"""

from collections.abc import Iterable, Mapping
from typing import Final
from zlib import crc32

import pytest

DAYS: Final = 6

FOLDERS: Final = ("tests/integration/", "tests/router/", "tests/mongosh/")
"""Their tests on the shared cluster are run."""

OWN_CLUSTERS: Final = (
    "tests/integration/test_failover.py::test_step_down_during_writes",
    "tests/integration/test_failover.py::test_a_change_stream_goes_on",
    "tests/migration/test_failover.py::test_step_down",
    "tests/migration/test_many_moves.py::test_many_moves_in_a_row_under_writes",
    "tests/resharding/test_reshard_collection.py::test_writers_lose_nothing",
    "tests/resharding/test_elections.py::test_election",
)
"""How the identifiers of tests with clusters of their own begin; these take turns too."""

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
}
"""Tests and files that have to be open, and why."""


def chosen(items: Iterable[pytest.Item], seed: int | None) -> tuple[list[pytest.Item], list[pytest.Item]]:
    """Tests to run and tests to leave out.

    Args:
        items: all tests that were collected.
        seed: whose turn it is; None if all of them are run.
    """
    items = list(items)
    kept = {item for item in items if _is_possible(item) and (seed is None or _day(item) == seed % DAYS)}
    return [item for item in items if item in kept], [item for item in items if item not in kept]


def _is_possible(item: pytest.Item) -> bool:
    if item.nodeid.startswith(tuple(NOT_CLOSED)):
        return False
    if item.nodeid.startswith(OWN_CLUSTERS):
        return True
    return item.nodeid.startswith(FOLDERS) and isinstance(item, pytest.Function) and _is_on_the_shared_cluster(item)


def _is_on_the_shared_cluster(item: pytest.Function) -> bool:
    # `collection` asks for the others only while it is set up.
    return _owner(item, "cluster") in ("", "tests") or "collection" in item.fixturenames


def _owner(item: pytest.Function, fixture: str) -> str | None:
    """The folder or module whose fixture a test gets; None if it gets none of that name."""
    definitions = item._fixtureinfo.name2fixturedefs.get(fixture)
    return definitions[-1].baseid if definitions else None


def _day(item: pytest.Item) -> int:
    """The day of a file as a whole, or of one of `OWN_CLUSTERS`; the same whatever else was collected."""
    own = (each for each in OWN_CLUSTERS if item.nodeid.startswith(each))
    return crc32(next(own, item.nodeid.partition("::")[0]).encode()) % DAYS
