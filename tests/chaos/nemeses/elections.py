"""Commands to mongods: primaries step down, members step up, and elections are frozen."""

from pymongo.errors import PyMongoError

from tests.chaos.nemeses.base import Nemesis
from tests.local_cluster import Client

ELECTION_SECONDS = 10
"""Seconds for which a former primary, or a frozen member, is not elected."""


class Elections(Nemesis):
    """See the module. Does nothing to sets of one member, which would just be left without a primary."""

    kind = "elections"
    interval = (2.0, 8.0)

    def harm(self) -> None:
        """Request one change of roles, which a member may refuse."""
        sets = sorted({name.split(".")[0] for name in self.scene.cluster.names if name.endswith(".mongod")})
        members = self.scene.cluster.mongods_of(self.random.choice(sets))
        order = self.random.choice([self._step_down, self._step_up, self._freeze])
        if len(members) == 1:
            return
        try:
            name = order(members)
        except PyMongoError as error:
            self.count("no election", error=f"{error}"[:200])
        else:
            self.count(order.__name__.strip("_"), process=name)

    def _step_down(self, members: list[str]) -> str:
        for name in members:
            with self._client(name) as client:
                if client.admin.command("hello")["isWritablePrimary"]:
                    seconds = self.random.choice([1, ELECTION_SECONDS])
                    client.admin.command("replSetStepDown", seconds, secondaryCatchUpPeriodSecs=1, force=True)
                    return name
        return "none"

    def _step_up(self, members: list[str]) -> str:
        name = self.random.choice(members)
        with self._client(name) as client:
            client.admin.command("replSetStepUp")
        return name

    def _freeze(self, members: list[str]) -> str:
        """Freeze a secondary, so that the next primary is another one, or there is none for a while."""
        name = self.random.choice(members)
        with self._client(name) as client:
            client.admin.command("replSetFreeze", ELECTION_SECONDS)
        return name

    def _client(self, name: str) -> Client:
        return self.scene.cluster.running.direct(name, serverSelectionTimeoutMS=1000, socketTimeoutMS=5000)
