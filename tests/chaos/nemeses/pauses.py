"""Processes that are paused for a while and then continue: a daemon, its mongod, or both."""

from contextlib import ExitStack

from tests.chaos.nemeses.base import Nemesis, kind_of


class Pauses(Nemesis):
    """See the module."""

    kind = "pauses"

    def harm(self) -> None:
        """Pause a random process, often together with the other half of its pair."""
        names, seconds = self.some_processes(), self.duration()
        with self.scene.processes, ExitStack() as stopped:
            for each in names:
                stopped.enter_context(self.scene.cluster.paused(each))
            self.count(f"pause {'+'.join(map(kind_of, names))}", processes=names, seconds=seconds)
            self.rest(seconds)
        self.scene.history.add("continue", processes=names)
