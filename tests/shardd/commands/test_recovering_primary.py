"""Commands that reach a primary before it has recovered: they wait, and so they cannot hold up the recovery."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast
from uuid import uuid4

import bson
import pytest
import trio
from bson.binary import Binary
from bson.timestamp import Timestamp
from trio.testing import MockClock

from shardwright.daemon.sidecar.role_certainty import RoleCertainty
from shardwright.shardd.commands.command import ShardCommand, run_command
from shardwright.shardd.commands.shard_commands import SHARD_COMMANDS
from shardwright.shardd.context.ddl_locks import DDLLocks
from shardwright.shardd.ddl.participants import BlockedCollections, RenameParticipants
from shardwright.shardd.metadata.critical_sections import RecoveryGate, SectionDriver
from shardwright.shardd.metadata.database_state import DatabaseState
from shardwright.shardd.metadata.namespace_state import BlockableState, NamespaceState, StateTable
from shardwright.shardd.shard_server import TermRecovery, Terms
from shardwright.sharding.versions import DatabaseVersion
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.message import OpMsg, op_msg
from shardwright.wire.request import Request

if TYPE_CHECKING:
    from shardwright.shardd.context.shard_context import ShardContext

UUID = Binary.from_uuid(uuid4())
VERSION = DatabaseVersion(uuid4(), Timestamp(1, 1), 1)
READ_SECONDS = 5.0
RESTORED = {"command": "of an earlier term"}
# `_addShard` gives a set its identity, without which no term begins.
OF_PRIMARIES = [command for command in SHARD_COMMANDS if command.primary_only and command.name != "_addShard"]


async def nothing(*_: object, **__: object) -> None:
    await trio.lowlevel.checkpoint()


class FakeShard:
    """A shard's primary with an empty mongod, at the beginning of a term: context, components and mongod in one."""

    def __init__(self) -> None:
        self.term: int | None = 2
        self.namespaces = StateTable(lambda name: NamespaceState(name, "me"))
        self.databases = StateTable(DatabaseState)
        self.namespace, self.database = self.namespaces.__getitem__, self.databases.__getitem__
        self.recovery_gate = RecoveryGate(lambda: self.term is not None)
        self.ddl_locks = DDLLocks()
        self.certainty = RoleCertainty(self, nothing, clock=lambda: 0.0)  # type: ignore[arg-type]
        self.context: Any = self
        self.sidecar = self.mongod = self.refresher = self.context
        self.migrations = SimpleNamespace(end_all=nothing)
        self.writer = SimpleNamespace(wait_collection_saved=nothing)
        self.open_cursors = SimpleNamespace(note_gone=nothing)
        self.views = SimpleNamespace(forget=lambda: None)
        clock = SimpleNamespace(time=SimpleNamespace(cluster_time=0))
        self.config_times = SimpleNamespace(
            clock=clock, observe=lambda _: None, observe_reply=lambda _: None, gossip=dict, wait_durable=nothing
        )
        context = cast("ShardContext", self)
        self.renames = RenameParticipants(context, self.migrations, SimpleNamespace(rename=nothing))
        self.blocked = BlockedCollections(context)

    load_identity = wait_identified = staticmethod(nothing)

    def forget_metadata(self) -> None:
        for state in (*self.namespaces, *self.databases):
            state.release()

    def forget_database(self, db: str) -> None:
        self.database(db).forget()

    async def refresh_collection(self, state: NamespaceState) -> None:
        await self.recovery_gate.wait_open()
        state.learn(None)

    reread_collection = refresh_collection

    async def refresh_database(self, state: DatabaseState) -> None:
        await self.recovery_gate.wait_open()
        state.learn(SimpleNamespace(version=VERSION))  # type: ignore[arg-type]

    async def command(self, _db: str, command: Mapping[str, Any]) -> dict[str, Any]:
        await trio.lowlevel.checkpoint()
        return {"ok": 1.0, "cursor": {"id": 0, "ns": "d.c", "firstBatch": []}}

    write = command

    async def send(self, command: ShardCommand, **fields: object) -> None:
        db = "admin" if command.admin_only else "d"
        body = bson.encode({command.name: "c", **fields, "$db": db})
        client: Any = SimpleNamespace(allow_interruption=lambda: None)
        await run_command(command, self.context, client, Request(OpMsg(op_msg(body, request_id=1))))

    def restoring(self, state: BlockableState) -> Terms:
        """The beginning of a term that reads for a while, and then restores a critical section."""

        async def restore(_term: int) -> None:
            await trio.sleep(READ_SECONDS)
            await SectionDriver(state, RESTORED).restore()

        return Terms(self.context, (TermRecovery(restore), self.recovery_gate))


@pytest.fixture
def shard() -> FakeShard:
    return FakeShard()


@pytest.mark.parametrize("command", OF_PRIMARIES, ids=lambda command: command.name)
async def test_all_commands_of_a_primary_run_after_its_recovery(
    shard: FakeShard, autojump_clock: MockClock, command: ShardCommand
) -> None:
    ran: list[float] = []

    async def handle(*_: object) -> dict[str, Any]:
        ran.append(trio.current_time())
        await trio.lowlevel.checkpoint()
        return {}

    began = trio.current_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(shard.send, replace(command, handler=handle, is_ddl=False))
        await trio.sleep(READ_SECONDS)
        shard.recovery_gate.open()
    assert ran == [began + READ_SECONDS]


async def test_a_command_fails_if_the_term_ends_before_the_recovery(
    shard: FakeShard, autojump_clock: MockClock
) -> None:
    async def end_term() -> None:
        await trio.sleep(READ_SECONDS)
        shard.term = None
        shard.recovery_gate.end_term()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(end_term)
        with pytest.raises(CommandError) as caught:
            await shard.send(SHARD_COMMANDS["_shardsvrParticipantBlock"])
    assert caught.value.code == ErrorCode.NotWritablePrimary
    assert shard.namespace("d.c").critical_section is None


async def test_the_wait_counts_towards_the_time_limit(shard: FakeShard, autojump_clock: MockClock) -> None:
    with pytest.raises(CommandError) as caught:
        await shard.send(SHARD_COMMANDS["_shardsvrParticipantBlock"], maxTimeMS=1000)
    assert caught.value.code == ErrorCode.MaxTimeMSExpired


@pytest.mark.parametrize(
    ("name", "fields", "state_of"),
    [
        ("_shardsvrDropCollectionParticipant", {}, lambda shard: shard.namespace("d.c")),
        (
            "_shardsvrDropDatabaseParticipant",
            {"databaseVersion": VERSION.to_document()},
            lambda shard: shard.database("d"),
        ),
        (
            "_shardsvrRenameCollectionParticipant",
            {"to": "d.e", "sourceUUID": UUID},
            lambda shard: shard.namespace("d.e"),
        ),
        ("_shardsvrParticipantBlock", {}, lambda shard: shard.namespace("d.c")),
        (
            "_shardsvrDropCollectionIfUUIDNotMatching",
            {"expectedCollectionUUID": UUID},
            lambda shard: shard.namespace("d.c"),
        ),
    ],
)
async def test_a_participant_waits_for_the_section_that_the_term_restores(
    shard: FakeShard,
    autojump_clock: MockClock,
    name: str,
    fields: dict[str, object],
    state_of: Callable[[FakeShard], BlockableState],
) -> None:
    state = state_of(shard)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(shard.restoring(state).on_step_up, 2, nursery)
        await trio.sleep(READ_SECONDS / 2)
        nursery.start_soon(lambda: shard.send(SHARD_COMMANDS[name], **fields))
        await trio.sleep(60)
        assert shard.recovery_gate.is_open
        section = state.critical_section
        assert section is not None
        assert section.reason == RESTORED
        SectionDriver(state, RESTORED).leave()
