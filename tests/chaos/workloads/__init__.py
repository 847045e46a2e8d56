"""The clients' operations in a run, and the checks of their results: one file for each workload."""

from typing import Final

from tests.chaos.workloads.append_lists import AppendLists
from tests.chaos.workloads.bank import Bank
from tests.chaos.workloads.base import Workload
from tests.chaos.workloads.causality import Causality
from tests.chaos.workloads.collations import Collations
from tests.chaos.workloads.counters import Counters
from tests.chaos.workloads.definitions import Definitions
from tests.chaos.workloads.identities import Identities
from tests.chaos.workloads.indexes import Indexes
from tests.chaos.workloads.key_updates import KeyUpdates
from tests.chaos.workloads.lookups import Lookups
from tests.chaos.workloads.merges import Merges
from tests.chaos.workloads.multi_updates import MultiUpdates
from tests.chaos.workloads.outs import Outs
from tests.chaos.workloads.registers import Registers
from tests.chaos.workloads.scans import Scans, SlowScans
from tests.chaos.workloads.sets import Sets
from tests.chaos.workloads.shapes import Shapes
from tests.chaos.workloads.snapshots import Snapshots
from tests.chaos.workloads.storms import Storms
from tests.chaos.workloads.upserts import Upserts

WORKLOADS: Final[dict[str, type[Workload]]] = {
    workload.name: workload
    for workload in (
        *(
            Registers,
            Counters,
            Identities,
            Sets,
            Scans,
            SlowScans,
            Snapshots,
            Upserts,
            MultiUpdates,
            KeyUpdates,
            Collations,
        ),
        *(Collations, Merges, Outs, Lookups, Definitions, Shapes, Indexes, Storms, Causality),
        *(Bank, AppendLists),
    )
}
"""All workloads, by name."""
