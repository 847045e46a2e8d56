"""Stages over other stages: batches by number, and the end."""

from collections.abc import Sequence
from typing import Any, cast

import bson
import trio

from shardwright.router.cursors.open_cursor import Cursor
from shardwright.router.exec.combined import BoundedStage, PrefetchedStage, RowStage, UnionStage
from shardwright.router.exec.stage import GetMore, ListStage, Stage
from shardwright.sharding.clock import VectorClock
from shardwright.wire.message import OpMsg, op_msg
from shardwright.wire.request import Request


class Batches(Stage):
    """A stage of given batches, the last of which is empty."""

    def __init__(self, *batches: Sequence[int]) -> None:
        self._batches = list(batches)

    async def next_batch(self, get_more: GetMore) -> list[bytes]:
        """See `Stage`."""
        return documents(*self._batches.pop(0)) if self._batches else []


def documents(*numbers: int) -> list[bytes]:
    """Small documents."""
    return [bson.encode({"_id": number}) for number in numbers]


def get_more(size: int | None) -> GetMore:
    """A ``getMore``."""
    body = bson.encode({"getMore": bson.Int64(7), "collection": "c", "$db": "db"})
    return GetMore(Request(OpMsg(op_msg(body, request_id=1))), None, 7, size)


def read(stage: Stage, *sizes: int | None) -> list[tuple[list[int], int]]:
    """The documents and the cursor id of each batch."""

    async def main() -> list[tuple[list[int], int]]:
        cursor = Cursor("db.c", BoundedStage(stage, get_more(None), first_size=None), VectorClock())
        found = []
        for size in sizes:
            frame = await cursor.next_batch(get_more(size))
            reply: dict[str, Any] = bson.decode(OpMsg(cast("bytes", frame)).body)["cursor"]
            found.append(([each["_id"] for each in reply["nextBatch"]], int(reply["id"])))
        return found

    return trio.run(main)


def test_batches_of_a_given_number() -> None:
    assert read(Batches([1, 2, 3], [4, 5]), 2, 2, 2) == [([1, 2], 7), ([3, 4], 7), ([5], 0)]


def test_without_a_number_a_batch_is_what_is_ready() -> None:
    assert read(Batches([1, 2, 3], [4]), None, None, None) == [([1, 2, 3], 7), ([4], 7), ([], 0)]


def test_no_documents_are_read_for_an_empty_batch() -> None:
    assert read(Batches([1]), 0, 5) == [([], 7), ([1], 0)]


class Holding(Batches):
    """A stage that holds documents of a given size."""

    held_bytes = 1_000


async def test_held_documents_of_all_stages_are_counted() -> None:
    async def open_second() -> Stage:
        return Holding()

    rows = RowStage(Holding([1, 2, 3]), lambda document, _: document)
    bounded = BoundedStage(PrefetchedStage(documents(0), UnionStage(rows, open_second)), get_more(None))
    size = len(documents(0)[0])
    assert bounded.held_bytes >= 1_000 + size
    await bounded.next_batch(get_more(1))
    assert bounded.held_bytes == 1_000
    await bounded.next_batch(get_more(1))
    assert bounded.held_bytes == 1_000 + 2 * size


async def test_a_union_opens_its_second_stage_when_the_first_has_ended() -> None:
    opened = []

    async def open_second() -> Stage:
        opened.append("second")
        return Batches([3])

    stage = UnionStage(PrefetchedStage(documents(1), ListStage(documents(2))), open_second)
    assert [await stage.next_batch(get_more(None)) for _ in range(2)] == [documents(1), documents(2)]
    assert not opened
    assert [await stage.next_batch(get_more(None)) for _ in range(2)] == [documents(3), []]
    assert opened == ["second"]
