"""Reasons for which suites skip tests on a sharded cluster but not on a replica set, without fault of the cluster."""

from typing import Final

RUN_ON_OTHERS: Final = "runOnRequirements name other topologies"
"""Of tests that a specification does not ask of sharded clusters; see the plugin `run_on_requirements`."""

OF_TOPOLOGY: Final = frozenset(
    {
        "Not connected to a replica set",
        "Must be connected to a mongod, not a mongos",
        "connected to mongos",
        # The driver itself refuses exhaust cursors on a mongos before 7.1.
        "This server does not support exhaust cursors",
        "mongos serves exhaust cursors only from 7.1, SERVER-57297",
        "mongos has no maxTimeAlwaysTimeOut fail point",
        RUN_ON_OTHERS,
    }
)
"""All others, such as that test commands are off, are faults of the cluster."""
