"""Recovery of a running cluster's processes from a damaged state file, enough to stop them."""

from shardwright.deploy.cluster_state import DEFAULT_CACHE_GB, DEFAULT_WORKERS, ClusterState
from shardwright.deploy.layout import Layout
from shardwright.deploy.marks import marked_processes
from shardwright.deploy.topology import ProcessPlan, Role, Size, Topology


def recovered_state(layout: Layout) -> ClusterState:
    """Return a state with only the names and roles of the running processes."""
    plans = tuple(ProcessPlan(name, _role(name), port=0) for name in sorted(marked_processes(layout.identity())))
    return ClusterState(Topology(Size(), plans), "", DEFAULT_CACHE_GB, DEFAULT_WORKERS, layout.choose_sockets())


def _role(name: str) -> Role:
    """Return the role in a name: at the end of ``shard0.1.mongod``, at the beginning of ``router.0``."""
    first, last = name.partition(".")[0], name.rpartition(".")[2]
    return Role.ROUTER if first == Role.ROUTER else Role(last)
