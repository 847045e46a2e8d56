"""Reading cursors, raw and decoded, of a server that a test makes up."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import bson
import pytest
import trio
import trio.testing

from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import BackendError, CommandError
from shardwright.wire.transport.client import decode_reply
from shardwright.wire.transport.cursor import KILL_SECONDS_MAX, Cursor, DecodedCursor, RawCursor
from tests.wire.raw_connection import op_msg_frame

FIND = {"find": "things", "filter": {}}
ID = 77

Reply = dict[str, Any] | Exception | None
"""None stands for a server that does not answer."""


class Server:
    """Answers the commands of a cursor one after the other; a ``killCursors`` it just takes.

    Attributes:
        asked: the commands, each with its database.
        killed: the cursors that were killed, with their collection.
    """

    def __init__(self, *replies: Reply) -> None:
        self._replies = list(replies)
        self.asked: list[dict[str, Any]] = []
        self.killed: list[tuple[str, list[int]]] = []
        self.kill_fails = False

    async def exchange(self, frame: bytes) -> bytes:
        return op_msg_frame(await self._answer(decode_reply(frame)))

    async def command(self, db: str, command: Mapping[str, Any]) -> dict[str, Any]:
        reply = await self._answer({**command, "$db": db})
        if not reply["ok"]:
            raise CommandError.from_reply(reply)
        return reply

    def cursor(
        self, kind: str, *, options: Mapping[str, Any] | None = None, reply_seconds_max: float = 60
    ) -> Cursor[Any, Any]:
        """A cursor on this server."""
        if kind == "raw":
            return RawCursor(self.exchange, "db", FIND, options=options, reply_seconds_max=reply_seconds_max)
        return DecodedCursor(self.command, "db", FIND, options=options, reply_seconds_max=reply_seconds_max)

    async def _answer(self, asked: dict[str, Any]) -> dict[str, Any]:
        await trio.lowlevel.checkpoint()
        if "killCursors" in asked:
            assert asked["$db"] == "db"
            self.killed.append((asked["killCursors"], asked["cursors"]))
            if self.kill_fails:
                await trio.sleep_forever()
            return {"cursorsKilled": asked["cursors"], "ok": 1.0}
        self.asked.append(asked)
        reply = self._replies.pop(0)
        if reply is None:
            await trio.sleep_forever()
            raise AssertionError
        if isinstance(reply, Exception):
            raise reply
        return reply


def batch(cursor_id: int, *numbers: int, name: str = "nextBatch") -> dict[str, Any]:
    documents = [{"_id": number} for number in numbers]
    return {"cursor": {name: documents, "id": bson.Int64(cursor_id), "ns": "db.other"}, "ok": 1.0}


def first(cursor_id: int, *numbers: int) -> dict[str, Any]:
    return batch(cursor_id, *numbers, name="firstBatch")


def ids(documents: list[Any]) -> list[int]:
    """The ids of documents that are raw or decoded."""
    return [(bson.decode(each) if isinstance(each, bytes) else each)["_id"] for each in documents]


def run(work: Callable[[], Awaitable[None]]) -> None:
    trio.run(work, clock=trio.testing.MockClock(autojump_threshold=0))


both_kinds = pytest.mark.parametrize("kind", ["raw", "decoded"])


@both_kinds
def test_an_empty_cursor_has_no_documents(kind: str) -> None:
    async def check() -> None:
        server = Server(first(0))
        cursor = server.cursor(kind)
        assert not cursor.is_exhausted
        assert await cursor.all_documents() == []
        assert cursor.is_exhausted
        assert await cursor.next_documents() == []
        assert server.asked == [{**FIND, "$db": "db"}]
        assert server.killed == []

    run(check)


@both_kinds
def test_batches_are_read_to_the_last_by_the_name_that_the_server_gives(kind: str) -> None:
    async def check() -> None:
        server = Server(first(ID, 1, 2), batch(ID), batch(ID, 3), batch(0, 4))
        assert ids(await server.cursor(kind).all_documents()) == [1, 2, 3, 4]
        assert server.asked[1:] == [{"getMore": ID, "collection": "other", "$db": "db"}] * 3
        assert server.killed == []

    run(check)


@both_kinds
def test_what_belongs_to_all_commands_goes_with_each_and_arguments_with_one(kind: str) -> None:
    async def check() -> None:
        server = Server(first(ID), batch(ID, 1), batch(0, 2))
        cursor = server.cursor(kind, options={"lsid": {"id": 1}})
        await cursor.next_batch(batchSize=0)
        assert (cursor.id, cursor.is_exhausted) == (ID, False)
        await cursor.next_batch(batchSize=5)
        await cursor.next_batch()
        assert (cursor.id, cursor.is_exhausted) == (0, True)
        assert [each["lsid"] for each in server.asked] == [{"id": 1}] * 3
        assert [each.get("batchSize") for each in server.asked] == [0, 5, None]

    run(check)


@both_kinds
def test_next_documents_passes_over_empty_batches(kind: str) -> None:
    async def check() -> None:
        server = Server(first(ID), batch(ID, 1), batch(ID), batch(0))
        cursor = server.cursor(kind)
        assert ids(await cursor.next_documents()) == [1]
        assert await cursor.next_documents() == []
        assert cursor.is_exhausted

    run(check)


@both_kinds
def test_an_error_at_the_beginning_leaves_nothing_to_kill(kind: str) -> None:
    async def check() -> None:
        server = Server({"ok": 0.0, "code": 13, "errmsg": "not authorized"})
        with pytest.raises(CommandError, match="not authorized") as caught:
            await server.cursor(kind).all_documents()
        assert caught.value.code == 13
        assert server.killed == []

    run(check)


@both_kinds
def test_a_cursor_is_killed_after_an_error_in_its_middle(kind: str) -> None:
    """The server has ended it if the error is the server's, but it may be one of ours, as for want of room."""

    async def check() -> None:
        server = Server(first(ID, 1), {"ok": 0.0, "code": 175, "errmsg": "QueryPlanKilled"})
        with pytest.raises(CommandError) as caught:
            await server.cursor(kind).all_documents()
        assert caught.value.code == ErrorCode.QueryPlanKilled
        assert server.killed == [("other", [ID])]

    run(check)


@both_kinds
def test_a_server_that_has_gone_is_not_asked_to_kill(kind: str) -> None:
    async def check() -> None:
        server = Server(first(ID, 1), BackendError("host:1", "closed the connection", sent=True))
        with pytest.raises(BackendError):
            await server.cursor(kind).all_documents()
        assert server.killed == []

    run(check)


@both_kinds
def test_a_cursor_that_is_given_up_is_killed(kind: str) -> None:
    async def check() -> None:
        server = Server(first(ID, 1, 2), batch(ID, 3))
        async with server.cursor(kind) as cursor:
            async for found in cursor:
                assert ids(list(found.documents())) == [1, 2]
                break
        assert cursor.id == 0
        assert server.killed == [("other", [ID])]
        await cursor.close()
        assert len(server.killed) == 1

    run(check)


@both_kinds
def test_a_cursor_whose_reader_is_cancelled_is_killed(kind: str) -> None:
    async def check() -> None:
        server = Server(first(ID, 1), None)
        with trio.move_on_after(1) as scope:
            await server.cursor(kind).all_documents()
        assert scope.cancelled_caught
        assert server.killed == [("other", [ID])]

    run(check)


@both_kinds
def test_a_server_that_does_not_kill_keeps_nobody_waiting_for_long(kind: str) -> None:
    async def check() -> None:
        server = Server(first(ID, 1))
        server.kill_fails = True
        began = trio.current_time()
        async with server.cursor(kind) as cursor:
            await cursor.next_batch()
        assert trio.current_time() - began == pytest.approx(KILL_SECONDS_MAX)

    run(check)


@both_kinds
@pytest.mark.parametrize("replies", [(None,), (first(ID, 1), None)], ids=["first", "later"])
def test_a_batch_that_does_not_come_in_time_is_an_error(kind: str, replies: tuple[Reply, ...]) -> None:
    async def check() -> None:
        server = Server(*replies)
        began = trio.current_time()
        with pytest.raises(CommandError) as caught:
            await server.cursor(kind, reply_seconds_max=30).all_documents()
        assert caught.value.code == ErrorCode.NetworkInterfaceExceededTimeLimit
        assert trio.current_time() - began == pytest.approx(30)
        assert len(server.killed) == len(replies) - 1

    run(check)
