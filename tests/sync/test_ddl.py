"""Collections at the target after DDL events: decisions without servers."""

import asyncio
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, Final

import pytest
from bson.timestamp import Timestamp

from shardwright.sync.ddl import Catalog
from shardwright.sync.plan import TTL_NEVER, Collection, Deployment
from shardwright.sync.replication import Replication
from shardwright.sync.writing import Writer

NS: Final = "shop.items"
FIRST: Final = b"1" * 16


def fake(**attributes: object) -> Any:  # noqa: ANN401 - a part of a replication
    return SimpleNamespace(**attributes)


class Fakes:
    """A catalog whose target records commands.

    Attributes:
        commands: the commands at the target, without write concerns.
        stored: the changes of the position.
    """

    def __init__(
        self, ours: Mapping[str, Collection] | None = None, theirs: Mapping[str, Collection] | None = None
    ) -> None:
        self.commands: list[dict[str, Any]] = []
        self.stored: list[Mapping[str, Any]] = []
        self.store = fake(id="1", fenced=self._fenced, check_lease=self._nothing, written=None)
        self.target = fake(command=self._command)
        self.source = fake()
        self.writer = Writer(self.source, self.target, self.store)
        deployments = [Deployment(False, (6, 0), "a set", {**(each or {})}) for each in (ours, theirs)]
        self.catalog = Catalog(
            Replication("mongodb://a", "mongodb://b"), self.source, self.target, self.store, self.writer, deployments
        )
        for each in (ours or {}).values():
            self.catalog.know(each)

    async def _command(self, _: str, command: Mapping[str, Any]) -> None:
        self.commands.append({name: value for name, value in command.items() if name != "writeConcern"})

    async def _fenced(self, _: str, __: object, changes: Mapping[str, Any], *___: object, **____: object) -> Timestamp:
        self.stored.append(changes)
        return Timestamp(1, 1)

    async def _nothing(self) -> None:
        """The lease is held."""


def expiring(name: str, seconds: int) -> dict[str, Any]:
    return {"v": 2, "name": name, "key": {name: 1}, "expireAfterSeconds": seconds}


@pytest.mark.parametrize("is_merged", [True, False], ids=["merged", "created"])
def test_nothing_expires_at_the_target_before_changes_are_applied(*, is_merged: bool) -> None:
    ours = Collection(NS, uuid=FIRST, indexes=[expiring("seen", 10), expiring("made", 20)])
    theirs = Collection(NS, indexes=[expiring("seen", 30), expiring("made", TTL_NEVER), expiring("own", 40)])
    fakes = Fakes({NS: ours}, {NS: theirs, "shop.other": Collection("shop.other", indexes=[expiring("seen", 10)])})
    if is_merged:
        fakes.writer.merged.add(NS)
    asyncio.run(fakes.catalog.stop_expiry())
    assert fakes.commands == [
        {"collMod": "items", "index": {"name": each, "expireAfterSeconds": TTL_NEVER}}
        for each in (["seen"] if is_merged else ["seen", "own"])
    ]
