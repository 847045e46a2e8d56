"""A config daemon whose balancer works with fake shards, which report sizes and answer every request."""

from collections.abc import Mapping
from typing import Any, Final

from bson.int64 import Int64
from bson.max_key import MaxKey
from bson.min_key import MinKey

from shardwright.wire.request import Request
from tests.configd.catalog_user import CatalogUser, Sharded
from tests.configd.fake_shard import FakeShard
from tests.integration.waiting import eventually

MB: Final = 1 << 20


class SizedShard(FakeShard):
    """A shard with a given size of each collection.

    Attributes:
        sizes: bytes by namespace; anything but a number is sent as it is.
        split_keys: what ``splitVector`` finds.
    """

    def __init__(self, set_name: str, address: str) -> None:
        super().__init__(set_name, address)
        self.sizes: dict[str, int | str] = {}
        self.split_keys: list[dict[str, Any]] = []

    def answer(self, request: Request) -> Mapping[str, Any]:
        """The reply to a command, without ``ok``."""
        if request.name == "_shardsvrGetStatsForBalancing":
            asked = request.document["collections"]
            return {"stats": [{"namespace": each["ns"], "collSize": self._size_of(each["ns"])} for each in asked]}
        if request.name == "splitVector":
            return {"splitKeys": self.split_keys}
        return super().answer(request)

    def _size_of(self, namespace: str) -> Int64 | str:
        size = self.sizes.get(namespace, 0)
        return size if isinstance(size, str) else Int64(size)

    @property
    def moves(self) -> list[dict[str, Any]]:
        """The requests to move chunks away, in order."""
        return self.received("_shardsvrMoveRange")


class BalancedWorld:
    """A config daemon with shards of known sizes, whose balancer is stopped at the beginning of each test."""

    def __init__(self, catalog: CatalogUser, shards: dict[str, SizedShard]) -> None:
        self.catalog = catalog
        self.shards = shards

    def run(self, command: dict[str, Any]) -> dict[str, Any]:
        """A command without a write concern."""
        return self.catalog.run(command, write_concern=None)

    def start(self) -> None:
        """Start the balancer; a round begins at once."""
        self.run({"_configsvrBalancerStart": 1})

    def run_round(self) -> None:
        """Start the balancer and stop it again after a whole round."""
        self.start()
        self.wait_rounds(1)
        self.run({"_configsvrBalancerStop": 1})

    def nudge(self, sharded: Sharded) -> None:
        """Make the next round begin at once, as a change of a collection's settings does."""
        self.run({"_configsvrConfigureCollectionBalancing": sharded.namespace, "enableAutoSplitter": True})

    def wait_rounds(self, number: int) -> None:
        """Wait until a number of rounds have begun and ended since the call."""
        status = self.run({"_configsvrBalancerStatus": 1})
        wanted = status["numBalancerRounds"] + number

        def done() -> bool:
            self.start()
            status = self.run({"_configsvrBalancerStatus": 1})
            return status["numBalancerRounds"] >= wanted and not status["inBalancerRound"]

        eventually(done, what=f"{number} rounds")

    def wait_moves(self, shard: str, number: int) -> list[dict[str, Any]]:
        """Wait for requests to move chunks away from a shard."""
        donor = self.shards[shard]
        with donor.arrived:
            assert donor.arrived.wait_for(lambda: len(donor.moves) >= number, 60)
        return donor.moves

    def logged_rounds(self) -> list[dict[str, Any]]:
        """The details of the rounds in the action log."""
        return [each["details"] for each in self.catalog.config.actionlog.find({"what": "balancer.round"})]


def uneven(world: BalancedWorld, namespace: str = "db.uneven", size: int = 400 * MB) -> Sharded:
    """A collection all of whose data are on shard ``a``."""
    world.shards["a"].sizes[namespace] = size
    return world.catalog.shard_collection(namespace, [(MinKey(), 0, "a"), (0, MaxKey(), "a")])
