"""Primaries that are paused through the term of another member, and are primary again when they continue."""

import time
from contextlib import ExitStack
from typing import Final

from pymongo.errors import PyMongoError

from tests.chaos.nemeses.base import Nemesis
from tests.local_cluster import Client

ELECTION_SECONDS_MAX: Final = 20.0
"""Time limit for the election of a member; after that the primary is paused through fewer elections."""

_RETRY_SECONDS: Final = 0.2


class Comebacks(Nemesis):
    """The daemon is paused through two elections. If its mongod is paused too, it continues before the second one.

    Does nothing to sets of one member.
    """

    kind = "comebacks"
    interval = (2.0, 6.0)

    def harm(self) -> None:
        """Pause one member; another one is primary for some seconds, then the first one again."""
        cluster = self.scene.cluster
        sets = sorted({name.split(".")[0] for name in cluster.names if name.endswith(".mongod")})
        members = cluster.mongods_of(self.random.choice(sets))
        if len(members) == 1:
            return
        sleeper = next((each for each in members if self._is_primary(each)), None)
        if sleeper is None:
            return
        other = self.random.choice([each for each in members if each != sleeper])
        place = sleeper.rpartition(".")[0]
        daemon = next(each for each in cluster.names if each.rpartition(".")[0] == place and each != sleeper)
        asleep = self.random.choice([[daemon], [sleeper], [daemon, sleeper]])
        with self.scene.processes, ExitStack() as daemons:
            with ExitStack() as mongods:
                for name in asleep:
                    (mongods if name == sleeper else daemons).enter_context(cluster.paused(name))
                is_other = self._elect(other)
                self.rest(self.random.uniform(0.5, 5.0))
            is_back = self._elect(sleeper)
        self.count("comeback" if is_other and is_back else "sleep", processes=asleep, other=other)

    def _elect(self, name: str) -> bool:
        deadline = time.monotonic() + ELECTION_SECONDS_MAX
        while time.monotonic() < deadline and not self.is_stopping.is_set():
            try:
                with self._client(name) as client:
                    client.admin.command("replSetStepUp")
            except PyMongoError:
                self.rest(_RETRY_SECONDS)  # behind, or another election is under way
            if self._is_primary(name):
                return True
        return False

    def _is_primary(self, name: str) -> bool:
        try:
            with self._client(name) as client:
                return bool(client.admin.command("hello")["isWritablePrimary"])
        except PyMongoError:
            return False

    def _client(self, name: str) -> Client:
        return self.scene.cluster.running.direct(name, serverSelectionTimeoutMS=1000, socketTimeoutMS=5000)
