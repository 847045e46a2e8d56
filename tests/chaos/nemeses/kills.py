"""Processes that are killed and restarted: a daemon, its mongod, or both, as when their machine fails."""

from tests.chaos.nemeses.base import Nemesis, kind_of


class Kills(Nemesis):
    """See the module."""

    kind = "kills"

    def harm(self) -> None:
        """Kill a random process, often together with the other half of its pair."""
        cluster = self.scene.cluster
        names, down = self.some_processes(), self.random.uniform(0.0, 1.5)
        with self.scene.processes:
            self.count(f"kill {'+'.join(map(kind_of, names))}", processes=names)
            for name in names:
                cluster.kill(name)
            self.rest(down)
            # Mongods come first, so that each daemon finds its mongod.
            for name in names:
                cluster.restart(name)
            self.scene.history.add("restart", processes=names)
