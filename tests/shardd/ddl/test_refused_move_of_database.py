"""The config servers refuse the commit of a ``movePrimary``."""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, cast
from uuid import uuid4

import pytest
import trio
import trio.testing
from bson.binary import Binary
from bson.timestamp import Timestamp

from shardwright.shardd.ddl import move_primary
from shardwright.shardd.ddl.move_primary import ABORT, COMMIT, MovePrimary
from shardwright.shardd.ddl.service import run_to_end
from shardwright.shardd.metadata.database_state import DatabaseState
from shardwright.sharding.namespace import Namespace
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError

ARGUMENTS = {
    "to": "other",
    "databaseVersion": {},
    "movedAt": Timestamp(1, 1),
    "copies": [],
    "copiedViews": [],
    "moveId": Binary.from_uuid(uuid4()),
}


async def done(*_: object, **__: object) -> None:
    await trio.lowlevel.checkpoint()


class Shard:
    """A shard whose mongod fails to replicate the first document of phase `ABORT`."""

    def __init__(self) -> None:
        self.database = DatabaseState("d")
        self.has_failed = False
        self.context: Any = SimpleNamespace(
            mongod=self,
            namespaces=(),
            database=lambda _: self.database,
            forget_database=lambda _: None,
            catalog=self._catalog,
            store=SimpleNamespace(count_database_critical_section=done),
            fail_points=SimpleNamespace(hang_while=done),
            require_identity=lambda: SimpleNamespace(shard_name="this"),
        )

    async def _catalog(self) -> Any:  # noqa: ANN401 - of the config servers
        return SimpleNamespace(commit=self._refuse)

    async def _refuse(self, _: Mapping[str, Any]) -> None:
        raise CommandError(ErrorCode.ShardNotFound, "Shard other is currently draining")

    async def write(self, _: str, command: Mapping[str, Any]) -> dict[str, Any]:
        await trio.lowlevel.checkpoint()
        if command.get("updates", [{}])[0].get("u", {}).get("phase") == ABORT and not self.has_failed:
            self.has_failed = True
            raise CommandError(ErrorCode.WriteConcernFailed, "waiting for replication timed out")
        return {"ok": 1}


def test_operations_are_admitted_again_even_if_the_decision_is_saved_late(monkeypatch: pytest.MonkeyPatch) -> None:
    shard = Shard()
    move = MovePrimary(shard.context, cast("Any", None), Namespace("d"), ARGUMENTS, COMMIT)
    monkeypatch.setattr(move_primary, "log_change", done)
    monkeypatch.setattr(MovePrimary, "_drop_copies", done)

    async def main() -> None:
        with pytest.raises(CommandError) as caught:
            await run_to_end(move)
        assert caught.value.code == ErrorCode.ShardNotFound

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    assert shard.has_failed
    assert shard.database.critical_section is None
