"""Batches of a cursor that reads a further namespace, during critical sections, listings and arrivals of ranges."""

from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, Final, cast
from uuid import UUID

import bson
import pytest
import trio
from bson.binary import Binary
from bson.int64 import Int64
from trio.testing import MockClock, wait_all_tasks_blocked

from shardwright.daemon.sidecar.role_certainty import RoleCertainty
from shardwright.shardd.cursor_batches import CursorBatches, InvolvedCursors
from shardwright.shardd.metadata.critical_sections import SectionDriver, closed
from shardwright.shardd.metadata.database_state import DatabaseState
from shardwright.shardd.metadata.namespace_state import NamespaceState
from shardwright.shardd.operations.admission import Admission, Entry
from shardwright.shardd.operations.involvement import InvolvedNamespace
from shardwright.shardd.operations.waiting_operations import WaitingOperations
from shardwright.shardd.orphans.cursor_kinds import Shown
from shardwright.shardd.orphans.fenced_cursor import FencedCursor, Kept
from shardwright.shardd.orphans.fenced_cursors import FencedCursors
from shardwright.shardd.orphans.open_cursors import OpenCursors
from shardwright.shardd.orphans.ownership_filter import OwnershipFilter
from shardwright.sharding.chunks import ChunkRange
from shardwright.sharding.shard_key import ShardKeyPattern
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.message import OpMsg, op_msg
from shardwright.wire.request import Request

CURSOR: Final = 77
RAW: Final = CURSOR.to_bytes(8, "little")
A_UUID: Final = UUID(int=1)
LSID: Final = {"id": Binary.from_uuid(UUID(int=2))}
SECTION: Final = {"command": "dropCollection", "ns": "d.b"}
HIDDEN_KEY: Final = 5


def reply_of(documents: list[dict[str, Any]], cursor_id: int = CURSOR) -> bytes:
    cursor = {"nextBatch": documents, "id": Int64(cursor_id), "ns": "d.a"}
    return op_msg(bson.encode({"cursor": cursor, "ok": 1.0}), request_id=2)


NOT_FOUND: Final = op_msg(bson.encode({"ok": 0.0, "code": ErrorCode.CursorNotFound, "errmsg": "gone"}), request_id=2)


class Shard:
    """A shard with a cursor on ``d.a`` that also reads ``d.b``, and the mongod that has the cursor.

    Attributes:
        is_open: whether mongod has the cursor.
        batches: the next batches of the cursor, before the last one, which is empty.
        sent: number of ``getMore`` commands that mongod has received.
    """

    def __init__(self) -> None:
        self.is_open = True
        self.batches: deque[list[dict[str, Any]]] = deque([[{"_id": 1, "key": 1}]])
        self.sent = 0
        self.killed: list[int] = []
        self.may_list = trio.Event()
        self.may_list.set()
        self.before_reply: Callable[[], object] = lambda: None
        mongod: Any = SimpleNamespace(command=self._command)
        self.open_cursors = OpenCursors(mongod)
        self.fenced = FencedCursors(mongod, self.open_cursors)
        self.waiting = WaitingOperations()
        self.further, self.database = NamespaceState("d.b", "sh0"), DatabaseState("d")
        self.further.learn(None)
        mirror: Any = SimpleNamespace(term=1)
        certainty = RoleCertainty(mirror, cast("Any", None), clock=lambda: 0.0)
        certainty.settle(1)
        refresher: Any = SimpleNamespace(refresh_collection=self._refresh)
        unused: Any = None
        admission = Admission(
            lambda _: self.further, lambda _: self.database, refresher, unused, unused, certainty, self.waiting
        )
        self.cursors = InvolvedCursors(admission, self.open_cursors.still_open)
        shard: Any = SimpleNamespace(
            context=SimpleNamespace(open_cursors=self.open_cursors),
            fenced_cursors=self.fenced,
            inherited_cursors=SimpleNamespace(are_gone=True),
        )
        self.runner = CursorBatches(shard, self.cursors)

    async def open(self) -> None:
        """Register the cursor as the operation that opens it does."""
        involved = InvolvedNamespace(self.further, self.database, is_written=False)
        await self.cursors.observe(reply_of([]), [Entry(involved, self.further.operations)])

    async def get_more(self, **fields: object) -> dict[str, Any]:
        """Return the reply to a ``getMore``."""
        command = {"getMore": Int64(CURSOR), "collection": "a", **fields, "$db": "d"}
        request = Request(OpMsg(op_msg(bson.encode(command), request_id=1)))
        upstream: Any = SimpleNamespace(forward=self._forward, command=self._command, user=None)
        reply = await self.runner.get_more(upstream, request)
        assert reply is not None
        return dict(bson.decode(OpMsg(reply).body))

    def fence(self, **fields: Any) -> FencedCursor:  # noqa: ANN401 - fields of a FencedCursor
        """Fence the cursor."""
        self.fenced._fenced[RAW] = fenced = FencedCursor("d.a", A_UUID, shown=Shown.KEY, **fields)
        return fenced

    async def _refresh(self, state: NamespaceState) -> None:
        await trio.lowlevel.checkpoint()
        state.learn(None)

    async def _forward(self, _frame: bytes, _flags: int) -> bytes:
        self.sent += 1
        await trio.lowlevel.checkpoint()
        self.before_reply()
        await wait_all_tasks_blocked(0.001)
        if not self.is_open:
            return NOT_FOUND
        if self.batches:
            return reply_of(self.batches.popleft())
        self.is_open = False
        return reply_of([], 0)

    async def _command(self, _db: str, command: Mapping[str, Any]) -> dict[str, Any]:
        await self.may_list.wait()
        found: list[dict[str, Any]] = []
        if "aggregate" in command and self.is_open:
            cursor = {"cursorId": Int64(CURSOR), "originatingCommand": {"aggregate": "a"}}
            found = [{"ns": "d.a", "isOlder": False, "cursor": cursor}]
        elif "listCollections" in command:
            found = [{"name": "a"}]
        elif "killCursors" in command:
            self.killed += command["cursors"]
        return {"ok": 1, "cursor": {"id": Int64(0), "ns": "admin.$cmd.aggregate", "firstBatch": found}}


@pytest.fixture
async def shard(autojump_clock: MockClock) -> Shard:
    """The shard, with the open cursor."""
    shard = Shard()
    await shard.open()
    return shard


@asynccontextmanager
async def reading(shard: Shard, replies: list[dict[str, Any]], **fields: object) -> AsyncIterator[None]:
    """Read a batch of the cursor, which waits for the critical section at the beginning of the block."""

    async def read() -> None:
        try:
            replies.append(await shard.get_more(**fields))
        except CommandError as error:
            replies.append({"ok": 0.0, "code": error.code})

    async with trio.open_nursery() as nursery, closed(shard.further, SECTION):
        nursery.start_soon(read)
        await wait_all_tasks_blocked(0.001)
        yield


@pytest.mark.parametrize("is_open", [True, False], ids=["open", "ended"])
async def test_a_drop_does_not_wait_for_a_batch_that_waits_for_it(shard: Shard, is_open: bool) -> None:
    """mongod has ended the cursor without the daemon's knowledge, and no listing shows it."""
    shard.is_open = is_open
    replies: list[dict[str, Any]] = []
    with trio.fail_after(1):
        async with reading(shard, replies):
            await shard.open_cursors.note_gone("d.b")
            assert (replies, shard.sent) == ([], 0)
    (reply,) = replies
    assert reply.get("code") == (None if is_open else ErrorCode.CursorNotFound)
    assert shard.sent == 1
    assert shard.further.operations.is_over
    assert RAW not in shard.open_cursors.in_use


async def test_no_batch_begins_during_a_listing_that_began_while_it_waited(shard: Shard) -> None:
    """The listing would miss the cursor."""
    replies: list[dict[str, Any]] = []
    async with trio.open_nursery() as nursery, reading(shard, replies):
        shard.may_list = trio.Event()
        nursery.start_soon(shard.open_cursors.note_gone, "d.c")
        await wait_all_tasks_blocked(0.001)
        assert shard.open_cursors.in_use.is_held
        nursery.start_soon(_end_listing, shard)
    assert replies[0]["cursor"]["nextBatch"] == [{"_id": 1, "key": 1}]


async def _end_listing(shard: Shard) -> None:
    await shard.further.wait_section_over()
    await wait_all_tasks_blocked(0.001)
    assert not shard.sent
    shard.may_list.set()


@pytest.mark.parametrize("has_moved", [False, True], ids=["still here", "moved"])
async def test_what_was_kept_of_a_cursor_while_a_batch_waited_is_returned(shard: Shard, has_moved: bool) -> None:
    """A range arrived during the wait, and the rest of the cursor was read because of it."""
    replies: list[dict[str, Any]] = []
    async with reading(shard, replies):
        assert RAW not in shard.open_cursors.in_use, "its rest may be read"
        kept = Kept(OpMsg(reply_of([])).body, deque([bson.encode({"_id": 8})]), 100)
        shard.fence(kept=kept)
        if has_moved:
            shard.database.entry = cast("Any", SimpleNamespace(primary="sh1"))
    assert replies[0]["cursor"]["nextBatch"] == [{"_id": 8}]
    assert not shard.sent
    assert not shard.killed


async def test_a_batch_is_one_operation_even_if_all_documents_of_a_reply_are_hidden(shard: Shard) -> None:
    """It does not wait in the middle, where it counts as in use."""
    pattern = ShardKeyPattern.from_mapping({"key": 1})
    bounds = [bson.encode({"key": each}) for each in (HIDDEN_KEY, HIDDEN_KEY + 1)]
    shard.fence(hidden=OwnershipFilter(pattern, [ChunkRange.of(pattern, *bounds)], None))
    shard.batches.appendleft([{"_id": 0, "key": HIDDEN_KEY}])
    section = SectionDriver(shard.further, SECTION)

    def enter_section() -> None:
        if shard.sent == 1:
            nursery.start_soon(section.restore)

    shard.before_reply = enter_section
    with trio.fail_after(1):
        async with trio.open_nursery() as nursery:
            reply = await shard.get_more()
    assert section.section is not None
    assert reply["cursor"]["nextBatch"] == [{"_id": 1, "key": 1}]
    assert shard.sent == 2
    assert shard.further.operations.is_over


async def test_a_wait_is_shown_and_ends_after_the_time_limit(shard: Shard) -> None:
    replies: list[dict[str, Any]] = []
    async with reading(shard, replies, maxTimeMS=1000):
        (shown,) = shard.waiting.operations("host:1")
        assert shown["ns"] == "d.a"
        assert shown["command"]["getMore"] == CURSOR
        await trio.sleep(1.1)
        assert replies == [{"ok": 0.0, "code": ErrorCode.MaxTimeMSExpired}]
    assert not shard.sent


@pytest.mark.parametrize("by", ["session", "opid"])
async def test_a_wait_ends_when_it_is_killed(shard: Shard, by: str) -> None:
    replies: list[dict[str, Any]] = []
    async with reading(shard, replies, lsid=LSID):
        if by == "session":
            shard.waiting.kill_sessions(lambda lsid: bson.decode(lsid) == LSID)
        else:
            (shown,) = shard.waiting.operations("host:1")
            shard.waiting.kill(shown["opid"])
        await wait_all_tasks_blocked(0.001)
        assert replies == [{"ok": 0.0, "code": ErrorCode.Interrupted}]
    assert not shard.sent


async def test_a_cursor_ends_if_a_further_namespace_has_moved(shard: Shard) -> None:
    replies: list[dict[str, Any]] = []
    async with reading(shard, replies):
        shard.database.entry = cast("Any", SimpleNamespace(primary="sh1"))
    assert replies == [{"ok": 0.0, "code": ErrorCode.QueryPlanKilled}]
    assert shard.killed == [CURSOR]
    assert not shard.sent
