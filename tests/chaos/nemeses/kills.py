"""Processes that are killed and started again, one at a time."""

from tests.chaos.nemeses.base import Nemesis, kind_of


class Kills(Nemesis):
    """See the module."""

    kind = "kills"

    def harm(self) -> None:
        """Kill any process."""
        cluster = self.scene.cluster
        name, down = self.random.choice(cluster.names), self.random.uniform(0.0, 1.5)
        with self.scene.processes:
            self.count(f"kill {kind_of(name)}", process=name)
            cluster.kill(name)
            self.rest(down)
            cluster.restart(name)
            self.scene.history.add("restart", process=name)
