"""The output of ``shardwright remove-shard`` while a shard drains, and its error if draining cannot continue."""

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from shardwright.deploy import shards
from shardwright.deploy.errors import DeployError
from shardwright.deploy.layout import Layout
from shardwright.deploy.shards import _drain
from shardwright.deploy.steps import BAR_WIDTH, Steps

if TYPE_CHECKING:
    from shardwright.deploy.shards import Client


class FakeRouter:
    """Answers ``removeShard`` by a script.

    Attributes:
        moved: the databases that were moved, each with its new primary shard.
    """

    def __init__(self, *left: tuple[int, int], mode: str = "full") -> None:
        self._left, self._mode = list(left), mode
        self._states = iter(["started"])
        self.moved: list[tuple[str, str]] = []
        self.admin = self
        databases = SimpleNamespace(count_documents=lambda query: 3 if query["primary"] == "shard0" else 1)
        self.config = SimpleNamespace(databases=databases)

    def command(self, name: str, about: str = "", *, to: str = "") -> Mapping[str, Any]:
        """The reply of a router."""
        match name:
            case "listShards":
                shards = [{"_id": "shard0"}, {"_id": "shard1"}, {"_id": "shard2", "draining": True}]
                return {"shards": shards}
            case "balancerStatus":
                return {"mode": self._mode}
            case "movePrimary":
                self.moved.append((about, to))
                return {}
        if state := next(self._states, None):
            return {"state": state}
        if not self._left:
            return {"state": "completed"}
        chunks, jumbo = self._left.pop(0)
        remaining = {"chunks": chunks, "jumboChunks": jumbo}
        return {"state": "ongoing", "remaining": remaining, "dbsToMove": [] if chunks else ["d", "e"]}


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "POLL_SECONDS", 0)


def drain(router: FakeRouter) -> None:
    _drain(cast("Client", router), "shard2", Steps(), Layout(Path("/c")))


def test_a_bar_shows_the_chunks_that_have_moved(capsys: pytest.CaptureFixture[str]) -> None:
    router = FakeRouter((8, 0), (5, 1), (2, 0), (0, 0))
    drain(router)
    (bar,) = capsys.readouterr().out.splitlines()
    assert "chunks moved" in bar
    assert "█" * BAR_WIDTH in bar
    assert "8/8" in bar
    assert router.moved == [("d", "shard1"), ("e", "shard1")], "to the shards with the fewest"


@pytest.mark.parametrize(
    ("router", "told"),
    [
        (FakeRouter((8, 0), (2, 2)), "all chunks left on shard2 are jumbo"),
        (FakeRouter((8, 0), (2, 1), mode="off"), "the balancer is off"),
    ],
)
def test_what_keeps_it_from_going_on_is_told(router: FakeRouter, told: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(DeployError, match=told):
        drain(router)
    assert "/8" in capsys.readouterr().out
