"""A fake shard that reports sizes and splits and moves chunks in the catalog at once, for tests of the balancer."""

from collections.abc import Mapping
from typing import Any

from bson.int64 import Int64

from shardwright.wire.request import Request
from tests.configd.fake_shard import FakeShard


class SizedShard(FakeShard):
    """A shard with a given size of each collection.

    Attributes:
        sizes: bytes by namespace.
        split_keys: what ``splitVector`` finds.
    """

    def __init__(self, set_name: str, address: str) -> None:
        super().__init__(set_name, address)
        self.sizes: dict[str, int] = {}
        self.split_keys: list[dict[str, Any]] = []

    def answer(self, request: Request) -> Mapping[str, Any]:
        """The reply to a command, without ``ok``."""
        if request.name == "_shardsvrGetStatsForBalancing":
            asked = request.document["collections"]
            return {
                "stats": [{"namespace": each["ns"], "collSize": Int64(self.sizes.get(each["ns"], 0))} for each in asked]
            }
        if request.name == "splitVector":
            return {"splitKeys": self.split_keys}
        return super().answer(request)

    @property
    def moves(self) -> list[dict[str, Any]]:
        """The requests to move chunks away, in order."""
        return self.received("_shardsvrMoveRange")
