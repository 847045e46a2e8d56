"""The end of a rename on one shard."""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, cast
from uuid import uuid4

import pytest
import trio

from shardwright.shardd.ddl.participants import LocalRename, RenameParticipants
from shardwright.shardd.metadata.namespace_state import NamespaceState, StateTable
from shardwright.sharding.namespace import Namespace
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError

SOURCE, TARGET = Namespace("d", "a"), Namespace("d", "b")


async def done(*_: object, **__: object) -> None:
    await trio.lowlevel.checkpoint()


class Mongod:
    """A mongod without the collection, which removes a document once without replicating the removal in time."""

    def __init__(self) -> None:
        self.documents: dict[str, Any] = {}
        self.has_failed = False

    async def command(self, _: str, command: Mapping[str, Any]) -> dict[str, Any]:
        await trio.lowlevel.checkpoint()
        found = self.documents.values() if "find" in command else ()
        return {"cursor": {"id": 0, "ns": "config.x", "firstBatch": list(found)}}

    async def write(self, _: str, command: Mapping[str, Any]) -> dict[str, Any]:
        await trio.lowlevel.checkpoint()
        for each in command.get("updates", ()):
            self.documents[each["q"]["_id"]] = each["u"]
        for each in command.get("deletes", ()):
            self.documents.pop(each["q"]["_id"], None)
            if not self.has_failed:
                self.has_failed = True
                raise CommandError(ErrorCode.WriteConcernFailed, "waiting for replication timed out")
        return {"ok": 1}


def test_a_repeated_end_admits_operations_on_both_names() -> None:
    mongod, states = Mongod(), StateTable(lambda name: NamespaceState(name, "this"))
    context: Any = SimpleNamespace(
        mongod=mongod,
        namespace=lambda name: states[name],
        refresher=SimpleNamespace(reread_collection=done),
        writer=SimpleNamespace(wait_collection_saved=done),
        views=SimpleNamespace(forget=lambda: None),
        open_cursors=SimpleNamespace(note_gone=done),
    )
    renames = RenameParticipants(
        context, cast("Any", SimpleNamespace(end_all=done)), cast("Any", SimpleNamespace(rename=done))
    )

    async def main() -> None:
        await renames.rename(LocalRename(SOURCE, TARGET, uuid4(), stay_temp=False))
        both = [states[str(each)] for each in (SOURCE, TARGET)]
        assert all(each.critical_section is not None for each in both)
        with pytest.raises(CommandError, match="timed out"):
            await renames.finish(SOURCE, TARGET)
        assert mongod.documents == {}
        await renames.finish(SOURCE, TARGET)
        assert all(each.critical_section is None for each in both)

    trio.run(main)
