"""The lifetime of cursors in the manager, on a mock clock."""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, cast

import bson
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from shardwright.router.cursors.manager import CursorManager
from shardwright.router.cursors.open_cursor import NO_USER, NOBODY, Cursor, CursorOwner
from shardwright.router.exec.remote import RemoteCursor
from shardwright.router.exec.stage import Stage
from shardwright.sharding.clock import VectorClock
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError, ConnectFailedError
from shardwright.wire.message import OpMsg
from shardwright.wire.transport.reply_memory import UnreadReplies
from shardwright.wire.transport.reservations import UnreadBounds

if TYPE_CHECKING:
    from shardwright.router.sending.shard_sender import ShardSender


class FakeSender:
    """Connections that record which cursors were killed on which host."""

    def __init__(self) -> None:
        self.killed: list[tuple[str, int]] = []
        self.is_unreachable = False

    async def exchange(self, address: str, frame: bytes) -> bytes:
        await trio.lowlevel.checkpoint()
        if self.is_unreachable:
            raise ConnectFailedError(address, "refused", sent=False)
        command = bson.decode(OpMsg(frame).body)
        assert (command["killCursors"], command["$db"]) == ("c", "test")
        self.killed += [(address, cursor_id) for cursor_id in command["cursors"]]
        return b""


class FakeStage(Stage):
    """A stage that reads one remote cursor. The manager does not read it."""

    __slots__ = ("held_bytes", "remotes")

    def __init__(self, remote: RemoteCursor) -> None:
        self.remotes: list[RemoteCursor] = [remote]
        self.held_bytes: int = 0

    @property
    def is_exhausted(self) -> bool:
        return self.remotes[0].is_exhausted


class FakeCursor(Cursor):
    """A cursor of one remote cursor."""

    root: FakeStage

    def __init__(self, sender: FakeSender, remote_id: int = 100) -> None:
        remote = RemoteCursor(cast("ShardSender", sender), "shard0", "shard0.example:1", "test.c", remote_id)
        super().__init__("test.c", FakeStage(remote), VectorClock())


MB = 1 << 20
KILLED = [("shard0.example:1", 100)]


def with_manager(
    body: Callable[[CursorManager, FakeSender], Awaitable[None]],
    *,
    idle_milliseconds: float = 600_000,
    sessions_time_out: bool = False,
    unread: UnreadReplies | None = None,
) -> None:
    """Run a test with a manager that is running."""

    unread_replies = unread or UnreadReplies(UnreadBounds())

    async def run() -> None:
        sender = FakeSender()
        manager = CursorManager(
            unread_replies.holdings,
            idle_milliseconds_max=lambda: idle_milliseconds,
            sessions_time_out=lambda: sessions_time_out,
        )
        async with trio.open_nursery() as nursery:
            nursery.start_soon(manager.run)
            await body(manager, sender)
            nursery.cancel_scope.cancel()

    trio.run(run, clock=MockClock(autojump_threshold=0))
    assert unread_replies.total_bytes == unread_replies.holdings.total_bytes == 0


def refused(
    manager: CursorManager, cursor_id: int, namespace: str = "test.c", owner: CursorOwner = NOBODY
) -> CommandError:
    """The error of a getMore."""
    with pytest.raises(CommandError) as error, manager.checked_out(cursor_id, namespace, owner):
        pass
    return error.value


def test_a_cursor_can_be_read_again_and_again() -> None:
    async def body(manager: CursorManager, sender: FakeSender) -> None:
        cursor = FakeCursor(sender)
        cursor_id = manager.open(cursor, NOBODY)
        for _ in range(2):
            with manager.checked_out(cursor_id, "test.c", NOBODY) as entry:
                assert entry.cursor is cursor
                assert manager.statistics().open_pinned == 1
        assert manager.statistics().open_total == 1
        assert sender.killed == []

    with_manager(body)


def test_an_exhausted_cursor_ends() -> None:
    async def body(manager: CursorManager, sender: FakeSender) -> None:
        cursor = FakeCursor(sender)
        cursor_id = manager.open(cursor, NOBODY)
        with manager.checked_out(cursor_id, "test.c", NOBODY):
            cursor.root.remotes[0].id = 0
        assert refused(manager, cursor_id).code == ErrorCode.CursorNotFound
        await wait_all_tasks_blocked()
        assert sender.killed == []

    with_manager(body)


def test_a_cursor_that_fails_ends_and_its_remotes_are_killed() -> None:
    async def body(manager: CursorManager, sender: FakeSender) -> None:
        cursor_id = manager.open(FakeCursor(sender), NOBODY)
        with pytest.raises(CommandError, match="broken"), manager.checked_out(cursor_id, "test.c", NOBODY):
            raise CommandError(ErrorCode.HostUnreachable, "broken")
        assert refused(manager, cursor_id).code == ErrorCode.CursorNotFound
        await wait_all_tasks_blocked()
        assert sender.killed == KILLED

    with_manager(body)


def test_a_cursor_survives_an_error_about_arguments() -> None:
    async def body(manager: CursorManager, sender: FakeSender) -> None:
        cursor_id = manager.open(FakeCursor(sender), NOBODY)
        with pytest.raises(CommandError, match="wrong"), manager.checked_out(cursor_id, "test.c", NOBODY):
            raise CommandError(ErrorCode.BadValue, "wrong")
        with manager.checked_out(cursor_id, "test.c", NOBODY):
            pass
        assert sender.killed == []

    with_manager(body)


def test_who_may_read_it_and_under_which_name() -> None:
    async def body(manager: CursorManager, sender: FakeSender) -> None:
        cursor_id = manager.open(FakeCursor(sender), CursorOwner(b"x" * 16))
        assert refused(manager, cursor_id).code == 50800
        other = refused(manager, cursor_id, "test.d")
        assert other.code == ErrorCode.Unauthorized
        assert other.message == (
            "Requested getMore on namespace 'test.d', but cursor belongs to a different namespace test.c"
        )
        with manager.checked_out(cursor_id, "test.c", CursorOwner(b"x" * 16)):
            in_use = refused(manager, cursor_id, owner=CursorOwner(b"x" * 16))
            assert in_use.code == ErrorCode.CursorInUse
        assert sender.killed == []

    with_manager(body)


def test_killing_a_cursor_ends_it() -> None:
    async def body(manager: CursorManager, sender: FakeSender) -> None:
        cursor_id = manager.open(FakeCursor(sender), NOBODY)
        assert not manager.kill(cursor_id, "other")
        assert manager.kill(cursor_id, "test")
        assert not manager.kill(cursor_id, "test")
        await wait_all_tasks_blocked()
        assert sender.killed == KILLED

    with_manager(body)


def test_killing_a_cursor_interrupts_who_reads_it() -> None:
    async def body(manager: CursorManager, sender: FakeSender) -> None:
        cursor_id = manager.open(FakeCursor(sender), NOBODY)
        codes: list[int] = []

        async def read() -> None:
            try:
                with manager.checked_out(cursor_id, "test.c", NOBODY):
                    await trio.sleep_forever()
            except CommandError as error:
                codes.append(error.code)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            await wait_all_tasks_blocked()
            assert manager.kill(cursor_id)
            assert not manager.kill(cursor_id)
        assert codes == [ErrorCode.CursorKilled]
        assert manager.statistics().open_total == 0
        await wait_all_tasks_blocked()
        assert sender.killed == KILLED

    with_manager(body)


def test_a_reader_that_is_cancelled_takes_the_cursor_along() -> None:
    async def body(manager: CursorManager, sender: FakeSender) -> None:
        cursor_id = manager.open(FakeCursor(sender), NOBODY)
        with trio.move_on_after(1), manager.checked_out(cursor_id, "test.c", NOBODY):
            await trio.sleep_forever()
        assert manager.statistics().open_total == 0
        await wait_all_tasks_blocked()
        assert sender.killed == KILLED

    with_manager(body)


def test_a_cursor_that_nobody_reads_times_out() -> None:
    async def body(manager: CursorManager, sender: FakeSender) -> None:
        read, unread, immortal = (FakeCursor(sender, n) for n in (1, 2, 3))
        cursor_id = manager.open(read, NOBODY)
        manager.open(unread, NOBODY)
        manager.open(immortal, NOBODY, is_immortal=True)
        await trio.sleep(40)
        with manager.checked_out(cursor_id, "test.c", NOBODY):
            pass
        await trio.sleep(40)
        statistics = manager.statistics()
        assert (statistics.open_total, statistics.timed_out, statistics.open_no_timeout) == (2, 1, 1)
        await wait_all_tasks_blocked()
        assert sender.killed == [("shard0.example:1", 2)]
        await trio.sleep(3600)
        assert (manager.statistics().open_total, manager.statistics().timed_out) == (1, 2)

    with_manager(body, idle_milliseconds=60_000)


@pytest.mark.parametrize("sessions_time_out", [False, True])
def test_a_cursor_of_a_session_lives_as_long_as_the_session(*, sessions_time_out: bool) -> None:
    async def body(manager: CursorManager, sender: FakeSender) -> None:
        manager.open(FakeCursor(sender), CursorOwner(b"x" * 16))
        await trio.sleep(3600)
        assert manager.statistics().open_total == (0 if sessions_time_out else 1)
        manager.kill_sessions({CursorOwner(b"x" * 16).session_key or b""})

    with_manager(body, idle_milliseconds=60_000, sessions_time_out=sessions_time_out)


def test_a_cursor_that_is_being_read_does_not_time_out() -> None:
    async def body(manager: CursorManager, sender: FakeSender) -> None:
        cursor_id = manager.open(FakeCursor(sender), NOBODY)
        with manager.checked_out(cursor_id, "test.c", NOBODY):
            await trio.sleep(3600)
        assert manager.statistics().open_total == 1
        assert sender.killed == []

    with_manager(body, idle_milliseconds=60_000)


def test_cursors_end_with_their_session() -> None:
    async def body(manager: CursorManager, sender: FakeSender) -> None:
        one, two = CursorOwner(b"1" * 16), CursorOwner(b"2" * 16)
        anothers = CursorOwner(b"1" * 16, user=b"u" * 32)
        manager.open(FakeCursor(sender, 1), one)
        manager.open(FakeCursor(sender, 2), one)
        kept = manager.open(FakeCursor(sender, 3), two)
        manager.open(FakeCursor(sender, 4), anothers)
        manager.open(FakeCursor(sender, 5), NOBODY, session_key=one.session_key)
        assert manager.kill_sessions({b"1" * 16 + NO_USER}) == 3
        assert manager.kill_sessions({b"1" * 16 + b"u" * 32}) == 1
        with manager.checked_out(kept, "test.c", two):
            pass
        assert manager.kill_all() == 1
        await wait_all_tasks_blocked()
        assert sorted(cursor_id for _, cursor_id in sender.killed) == [1, 2, 3, 4, 5]

    with_manager(body)


def test_the_cursors_of_a_transaction_end_with_it() -> None:
    session = b"1" * 16
    ended, others = CursorOwner(session, 5), (CursorOwner(session, 6), CursorOwner(session), CursorOwner(b"2" * 16, 5))

    async def body(manager: CursorManager, sender: FakeSender) -> None:
        for number, owner in enumerate((ended, *others, ended), 1):
            manager.open(FakeCursor(sender, number), owner)
        manager.end_transaction(ended)
        manager.end_transaction(ended)
        await wait_all_tasks_blocked()
        assert sorted(cursor_id for _, cursor_id in sender.killed) == [1, 5]
        assert manager.kill_all() == len(others)

    with_manager(body)


def test_who_reads_the_cursor_of_an_ended_transaction_is_told_so() -> None:
    owner = CursorOwner(b"1" * 16, 5)

    async def body(manager: CursorManager, sender: FakeSender) -> None:
        cursor_id = manager.open(FakeCursor(sender, 1), owner)
        manager.end_transaction(owner)
        for reader, code in ((CursorOwner(b"1" * 16), 50803), (owner, ErrorCode.CursorNotFound)):
            with pytest.raises(CommandError) as caught, manager.checked_out(cursor_id, "d.c", reader):
                pass
            assert caught.value.code == code

    with_manager(body)


def test_a_host_that_cannot_be_reached_keeps_nobody_from_killing() -> None:
    async def body(manager: CursorManager, sender: FakeSender) -> None:
        sender.is_unreachable = True
        assert manager.kill(manager.open(FakeCursor(sender, 1), NOBODY))
        await wait_all_tasks_blocked()
        sender.is_unreachable = False
        assert manager.kill(manager.open(FakeCursor(sender, 100), NOBODY))
        await wait_all_tasks_blocked()
        assert sender.killed == KILLED

    with_manager(body)


def holding(sender: FakeSender, size: int) -> FakeCursor:
    cursor = FakeCursor(sender)
    cursor.root.held_bytes = size
    return cursor


def test_what_cursors_hold_is_counted_until_they_end() -> None:
    unread = UnreadReplies(UnreadBounds(total_bytes=10 * MB))

    async def body(manager: CursorManager, sender: FakeSender) -> None:
        cursor = holding(sender, 2 * MB)
        cursor_id = manager.open(cursor, NOBODY)
        assert unread.total_bytes == 2 * MB
        with manager.checked_out(cursor_id, "test.c", NOBODY):
            cursor.root.held_bytes = MB
        assert unread.total_bytes == MB
        manager.kill(cursor_id)
        assert unread.total_bytes == 0

    with_manager(body, unread=unread)


def test_the_cursor_that_was_read_longest_ago_ends_for_want_of_room() -> None:
    unread = UnreadReplies(UnreadBounds(total_bytes=10 * MB))

    async def body(manager: CursorManager, sender: FakeSender) -> None:
        first, second, third = (manager.open(holding(sender, 3 * MB), NOBODY) for _ in range(3))
        with manager.checked_out(first, "test.c", NOBODY):
            pass
        manager.open(holding(sender, 3 * MB), NOBODY)
        assert unread.holdings.ended == 1
        assert refused(manager, second).code == ErrorCode.CursorNotFound
        for cursor_id in (first, third):
            with manager.checked_out(cursor_id, "test.c", NOBODY):
                pass
        assert unread.total_bytes == 9 * MB
        manager.kill_all()

    with_manager(body, unread=unread)


def test_a_cursor_that_is_being_read_is_not_ended_for_want_of_room() -> None:
    unread = UnreadReplies(UnreadBounds(total_bytes=10 * MB))

    async def body(manager: CursorManager, sender: FakeSender) -> None:
        read = manager.open(holding(sender, 6 * MB), NOBODY)
        with manager.checked_out(read, "test.c", NOBODY):
            manager.open(holding(sender, 6 * MB), NOBODY)
        assert unread.holdings.ended == 1
        with manager.checked_out(read, "test.c", NOBODY):
            pass
        manager.kill_all()

    with_manager(body, unread=unread)
