"""Processes that are killed and restarted: a daemon, its mongod, or both, as when their machine fails."""

from tests.chaos.nemeses.base import Nemesis, Scene, kind_of


class Kills(Nemesis):
    """Kills a process of each kind first, in any order, so that no kind is missing from a run of some length."""

    kind = "kills"

    def __init__(self, scene: Scene, seed: str) -> None:
        super().__init__(scene, seed)
        self._kinds_left = sorted(set(map(kind_of, scene.cluster.names)))
        self.random.shuffle(self._kinds_left)

    def harm(self) -> None:
        """Kill a random process, later often together with the other half of its pair."""
        cluster = self.scene.cluster
        names, down = self._next_processes(), self.random.uniform(0.0, 1.5)
        with self.scene.processes:
            self.count(f"kill {'+'.join(map(kind_of, names))}", processes=names)
            for name in names:
                cluster.kill(name)
            self.rest(down)
            # Mongods come first, so that each daemon finds its mongod.
            for name in names:
                cluster.restart(name)
            self.scene.history.add("restart", processes=names)

    def _next_processes(self) -> list[str]:
        if not self._kinds_left:
            return self.some_processes()
        kind = self._kinds_left.pop()
        return [self.random.choice([name for name in self.scene.cluster.names if kind_of(name) == kind])]
