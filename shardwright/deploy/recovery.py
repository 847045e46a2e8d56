"""What can be known of a running cluster whose state file is damaged: enough to end it."""

from shardwright.deploy.layout import DEFAULT_CACHE_GB, DEFAULT_WORKERS, ClusterState, Layout
from shardwright.deploy.marks import marked_processes
from shardwright.deploy.topology import ProcessPlan, Role, Size, Topology


def recovered_state(layout: Layout) -> ClusterState:
    """A state that has the running processes by their names and roles, and nothing else.

    Raises:
        DeployError: the directory does not exist.
    """
    plans = tuple(ProcessPlan(name, _role(name), port=0) for name in sorted(marked_processes(layout.identity())))
    return ClusterState(Topology(Size(), plans), "", DEFAULT_CACHE_GB, DEFAULT_WORKERS, layout.choose_sockets())


def _role(name: str) -> Role:
    """``shard0.1.mongod`` says its role at its end, ``router.0`` at its beginning."""
    first, last = name.partition(".")[0], name.rpartition(".")[2]
    return Role.ROUTER if first == Role.ROUTER else Role(last)
