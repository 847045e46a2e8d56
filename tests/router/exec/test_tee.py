"""Several readers of one stage."""

from collections.abc import Sequence

import pytest
import trio
import trio.testing

from shardwright.router.exec.combined import Tee, TeeReader
from shardwright.router.exec.stage import GetMore, Stage
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from tests.router.exec.fakes import get_more


class Source(Stage):
    """Batches of one document each, and how many were read; then an error, or the end."""

    def __init__(self, count: int, error: CommandError | None = None) -> None:
        self.read = 0
        self._count = count
        self._error = error

    async def next_batch(self, get_more: GetMore) -> list[bytes]:
        """See `Stage`."""
        await trio.lowlevel.checkpoint()
        if self.read < self._count:
            self.read += 1
            return [b"%d" % self.read]
        if self._error is not None:
            raise self._error
        return []


async def drain(reader: Stage) -> list[bytes]:
    """All documents."""
    found: list[bytes] = []
    while batch := await reader.next_batch(get_more()):
        found += batch
    return found


async def read_all(source: Source, limits: Sequence[int | None]) -> list[list[bytes]]:
    """Return the documents of readers that stop after a number of documents, or at the end."""
    tee = Tee(source, len(limits))
    found: list[list[bytes]] = [[] for _ in limits]

    async def read(number: int, reader: TeeReader) -> None:
        limit = limits[number]
        if limit is None:
            found[number] = await drain(reader)
        else:
            while len(found[number]) < limit:
                found[number] += await reader.next_batch(get_more())
        await tee.leave(reader)

    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(tee.pump, get_more())
            for number, reader in enumerate(tee.readers):
                nursery.start_soon(read, number, reader)
    return found


def test_every_reader_gets_everything() -> None:
    assert trio.run(read_all, Source(5), [None, None, None]) == [[b"1", b"2", b"3", b"4", b"5"]] * 3


def test_readers_that_leave_are_not_waited_for() -> None:
    source = Source(100)
    found = trio.run(read_all, source, [0, 2, 7])
    assert [len(each) for each in found] == [0, 2, 7]
    assert source.read <= 8


async def test_one_batch_is_read_when_all_want_it() -> None:
    source = Source(3)
    tee = Tee(source, 2)
    first, second = tee.readers
    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(tee.pump, get_more())
            nursery.start_soon(first.next_batch, get_more())
            await trio.testing.wait_all_tasks_blocked()
            assert source.read == 0
            assert await second.next_batch(get_more()) == [b"1"]
            await tee.leave(first)
            await tee.leave(second)


async def test_readers_fail_when_the_source_does() -> None:
    error = CommandError(ErrorCode.BadValue, "no")
    tee = Tee(Source(1, error), 1)
    [reader] = tee.readers
    outcomes: list[int] = []

    async def pump() -> None:
        with pytest.raises(CommandError) as failure:
            await tee.pump(get_more())
        outcomes.append(failure.value.code)

    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(pump)
            assert await reader.next_batch(get_more()) == [b"1"]
            with pytest.raises(CommandError) as failure:
                await reader.next_batch(get_more())
    assert outcomes == [ErrorCode.BadValue]
    assert failure.value.code == ErrorCode.QueryPlanKilled
