"""Refining a shard key while an earlier commit is still on its way to the config servers."""

from collections.abc import Mapping
from typing import Any

import pytest
import trio

from shardwright.shardd.ddl import shard_key_changes
from shardwright.shardd.ddl.shard_key_changes import RefineCollectionShardKey
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from tests.shardd.ddl.test_refused_repetitions import LOST, REFINE, REFINEMENT, FakeCluster, run

NO_INDEX = CommandError(ErrorCode.InvalidOptions, "Please create an index")


class SlowNetwork(FakeCluster):
    """The config servers execute each transaction number once, and a network delays the first refinement.

    Attributes:
        late: the delayed command.
        checks: the outcomes of the next checks of an owner's index.
    """

    def __init__(self) -> None:
        super().__init__()
        self.late: Mapping[str, Any] | None = None
        self.checks: list[CommandError | None] = []
        self._executed = 0

    async def commit(self, command: Mapping[str, Any], _db: str = "admin") -> dict[str, Any]:
        """Execute a command of the config servers."""
        if REFINE in command and self.late is None:
            self.late = command
            raise LOST
        return await self.arrive(command)

    async def arrive(self, command: Mapping[str, Any]) -> dict[str, Any]:
        """Execute a command, unless it is a repetition or comes late."""
        number = int(command.get("txnNumber", self._executed + 1))
        if number < self._executed:
            raise CommandError(ErrorCode.TransactionTooOld, "a newer one has already started")
        if number == self._executed:
            return {}
        reply = await super().commit(command)
        self._executed = number
        return reply

    async def check_index(self, *_: object, **_options: object) -> None:
        """Check the index of an owner."""
        await trio.lowlevel.checkpoint()
        outcome = self.checks.pop(0) if self.checks else None
        if outcome is not None:
            raise outcome


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> SlowNetwork:
    """Send the coordinator's commands to the fake cluster."""
    cluster = SlowNetwork()

    async def nothing(*_: object, **_options: object) -> None:
        await trio.lowlevel.checkpoint()

    monkeypatch.setattr("shardwright.shardd.ddl.service.CoordinatorService._check_not_blocked", nothing)
    monkeypatch.setattr(RefineCollectionShardKey, "_check_index", cluster.check_index)
    monkeypatch.setattr(shard_key_changes, "check_expected_uuid", nothing)
    return cluster


def test_a_refinement_that_was_given_up_is_not_made_late(cluster: SlowNetwork) -> None:
    cluster.checks = [None, None, None, NO_INDEX]
    assert run(cluster, RefineCollectionShardKey, REFINEMENT) is NO_INDEX
    assert cluster.late is not None
    with pytest.raises(CommandError) as failure:
        trio.run(cluster.arrive, cluster.late)
    assert failure.value.code == ErrorCode.TransactionTooOld
    assert cluster.key == {"a": 1}


def test_a_delayed_refinement_is_repeated(cluster: SlowNetwork) -> None:
    assert run(cluster, RefineCollectionShardKey, REFINEMENT) == {}
    assert cluster.key == REFINEMENT["newShardKey"]
