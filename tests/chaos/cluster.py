"""The cluster of a run, with a given shape, and the links between its daemons."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from shardwright.deploy.layout import Layout
from tests.chaos.links import Links
from tests.chaos.stage import ORPHANS_KEPT_SECONDS, Shape
from tests.migration.fault_cluster import FaultCluster, fault_cluster

SHARD_OPTIONS: Final = (
    # It is rounded down by up to a second.
    *("--orphan-cleanup-delay", str(ORPHANS_KEPT_SECONDS + 1)),
    # A killed router leaves cursors behind, for which range deletions wait, and later moves wait for those. The
    # defaults, ten minutes or the end of their session, would be too long.
    *("--set-parameter", "cursorTimeoutMillis=30000", "--set-parameter", "clientCursorMonitorFrequencySecs=1"),
    *("--set-parameter", "enableTimeoutOfInactiveSessionCursors=true"),
)


@contextmanager
def shaped_cluster(directory: Path, shape: Shape) -> Iterator[tuple[FaultCluster, Links | None]]:
    """A new cluster, and its links if it has links that can fail; it is stopped after the block."""
    options = [*SHARD_OPTIONS, "--members", str(shape.members), "--config-members", str(shape.config_members)]
    options += ["--routers", str(shape.routers), "--shards", str(shape.shards)]
    options += ["--separate-sockets"] if shape.has_links else []
    with fault_cluster(directory, *options) as cluster:
        if not shape.has_links:
            yield cluster, None
            return
        links, daemons = Links(), [name for name in cluster.names if not name.endswith(".mongod")]
        state = Layout(directory.resolve()).require()
        directories = {name: state.sockets_of(name) for name in daemons}
        with links.serving(directories, {name: cluster.running.address(name) for name in daemons}):
            # Connections opened before the links existed are opened again through them.
            for name in daemons:
                cluster.restart(name)
            yield cluster, links
