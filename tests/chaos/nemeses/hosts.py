"""Whole hosts that are frozen, or unplugged: the daemon and the mongod of one member, which end no connection."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from tests.chaos.links import Links
from tests.chaos.nemeses.base import Nemesis
from tests.migration.fault_cluster import FaultCluster


class Hosts(Nemesis):
    """See the module. Does nothing to sets of one member, where no other member can take over."""

    kind = "hosts"
    interval = (2.0, 8.0)

    def harm(self) -> None:
        """Take one member away, mostly a primary, for up to half a minute."""
        cluster = self.scene.cluster
        sets = sorted({name.split(".")[0] for name in cluster.names if name.endswith(".mongod")})
        chosen, draw, seconds = self.random.choice(sets), self.random.random(), self.random.uniform(1.0, 30.0)
        members = [name.rpartition(".")[0] for name in cluster.mongods_of(chosen)]
        is_unplugged = self.scene.links is not None and self.random.random() < 0.5
        place = self.random.choice(members)
        if len(members) == 1:
            return
        if draw < 0.7:
            place = f"{chosen}.{cluster.primary_index(chosen)}"
        what = f"{'unplug' if is_unplugged else 'freeze'} {chosen.rstrip('0123456789')}"
        with self.scene.processes, host_away(cluster, place, self.scene.links if is_unplugged else None):
            self.count(what, place=place, seconds=seconds)
            self.rest(seconds)
        self.scene.history.add("back", place=place)


@contextmanager
def host_away(cluster: FaultCluster, place: str, links: Links | None = None) -> Iterator[None]:
    """Freeze a member during the block.

    Args:
        cluster: the cluster.
        place: the member, for example ``shard0.2``.
        links: if given, the daemon is cut off instead; it runs, but whatever it sends arrives only afterwards.
    """
    with ExitStack() as away:
        for name in (each for each in cluster.names if each.rpartition(".")[0] == place):
            is_cut_off = links is not None and not name.endswith(".mongod")
            away.enter_context(links.cut_off(name) if links is not None and is_cut_off else cluster.paused(name))
        yield
