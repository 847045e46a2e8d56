"""Cursors that clients read while they are listed: none is missed, and readers wait for an instant only."""

from collections.abc import Awaitable, Callable, Mapping
from functools import partial, wraps
from typing import Any, Final

import pytest
import trio
from bson.int64 import Int64
from trio.testing import MockClock

from shardwright.shardd.orphans.open_cursors import CursorsInUse, OpenCursors, now

NAMESPACE: Final = "db.c"
OLDER: Final = {"ns": NAMESPACE, "isOlder": True, "cursor": {"cursorId": Int64(7), "originatingCommand": {}}}
NEWER: Final = {"ns": NAMESPACE, "isOlder": True, "cursor": {"cursorId": Int64(8), "originatingCommand": {}}}
ELSEWHERE: Final = {"ns": "db.d", "isOlder": False, "cursor": {"cursorId": Int64(9), "originatingCommand": {}}}


def in_trio(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Run a test with a clock that jumps to the end of each wait."""

    @wraps(test)
    def run(**arguments: Any) -> None:  # noqa: ANN401 - pytest's
        trio.run(partial(test, **arguments), clock=MockClock(autojump_threshold=0))

    return run


def raw_id(cursor_id: int) -> bytes:
    return cursor_id.to_bytes(8, "little")


class FakeMongod:
    """Answers listings with these documents, one after the other; the last one again and again."""

    def __init__(self, *listings: list[dict[str, Any]]) -> None:
        self.listings = list(listings)
        self.asked = 0

    async def command(self, db: str, command: Mapping[str, Any]) -> dict[str, Any]:
        assert db == "admin"
        assert "aggregate" in command
        self.asked += 1
        await trio.lowlevel.checkpoint()
        found = self.listings.pop(0) if len(self.listings) > 1 else self.listings[0]
        return {"ok": 1, "cursor": {"id": Int64(0), "ns": "admin.$cmd.aggregate", "firstBatch": found}}


def open_cursors(mongod: FakeMongod) -> OpenCursors:
    return OpenCursors(mongod)  # type: ignore[arg-type]


@in_trio
async def test_a_cursor_in_use_that_is_not_listed_counts_as_open() -> None:
    cursors = open_cursors(mongod := FakeMongod([]))
    cursors.in_use.enter(raw_id(7))
    with trio.move_on_after(0.3) as patience:
        await cursors.wait_closed(NAMESPACE, opened_until=now())
    assert patience.cancelled_caught
    assert mongod.asked > 2
    cursors.in_use.exit(raw_id(7))
    await cursors.wait_closed(NAMESPACE, opened_until=now())


@in_trio
async def test_newer_cursors_and_those_of_other_collections_are_not_waited_for() -> None:
    cursors = open_cursors(mongod := FakeMongod([OLDER], [OLDER, NEWER], [NEWER, ELSEWHERE]))
    with trio.fail_after(5):
        await cursors.wait_closed(NAMESPACE, opened_until=now())
    assert mongod.asked == 4, "the last one with readers held back"


@in_trio
async def test_listing_is_repeated_until_it_shows_all_cursors_in_use() -> None:
    cursors = open_cursors(mongod := FakeMongod([ELSEWHERE], [], [ELSEWHERE, OLDER], [ELSEWHERE, OLDER, NEWER]))
    for cursor_id in (7, 9):
        cursors.in_use.enter(raw_id(cursor_id))
    present = now()
    for _ in range(2):
        assert [each.id for each in await cursors.older(NAMESPACE, opened_until=present)] == [7]
    assert mongod.asked == 4


@in_trio
async def test_readers_wait_for_the_end_of_a_listing() -> None:
    in_use = CursorsInUse()
    in_use.enter(raw_id(1))
    order: list[str] = []

    async def read(name: str) -> None:
        await in_use.wait_released()
        order.append(name)
        in_use.enter(raw_id(2))

    async with trio.open_nursery() as nursery:
        async with in_use.held() as used:
            assert used == {1}
            nursery.start_soon(read, "a")
            nursery.start_soon(read, "b")
            await trio.sleep(1)
            assert not order
        async with in_use.held() as used:
            assert sorted(order) == ["a", "b"], "they begin before they can be held back again"
            assert used == {1, 2}
        in_use.exit(raw_id(2))
        async with in_use.held() as used:
            assert used == {1, 2}, "the other reader of the same cursor has not ended"


@in_trio
async def test_a_listing_waits_briefly_for_batches_under_way() -> None:
    in_use = CursorsInUse()
    in_use.enter(raw_id(1))

    async def end() -> None:
        await trio.sleep(0.001)
        in_use.exit(raw_id(1))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(end)
        async with in_use.held() as used:
            assert used == frozenset()


@pytest.mark.parametrize("holders", [1, 3])
@in_trio
async def test_every_reader_begins_between_two_listings(holders: int) -> None:
    in_use = CursorsInUse()
    begun = 0

    async def hold() -> None:
        for _ in range(5):
            async with in_use.held():
                await trio.sleep(0.1)

    async def read() -> None:
        nonlocal begun
        await trio.sleep(0.05)
        await in_use.wait_released()
        begun += 1
        assert trio.current_time() < began + 0.15

    began = trio.current_time()
    async with trio.open_nursery() as nursery:
        for _ in range(holders):
            nursery.start_soon(hold)
        for _ in range(10):
            nursery.start_soon(read)
    assert begun == 10
