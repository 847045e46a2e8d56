"""The cursor of a stream: batches by number and by bytes, and its end."""

from collections.abc import Sequence
from typing import Any, cast

import bson
import trio

from shardwright.router.cursors.cursor import GetMore
from shardwright.router.lookup.mongod_stages import StreamCursor
from shardwright.router.lookup.streams import ConcatenatedStream, DocumentStream, ListStream, PrefetchedStream
from shardwright.sharding.clock import VectorClock
from shardwright.wire.message import OpMsg, op_msg
from shardwright.wire.request import Request


class Batches:
    """A stream of given batches, the last of which is empty."""

    remotes = ()

    def __init__(self, *batches: Sequence[int]) -> None:
        self._batches = list(batches)

    async def next_batch(self) -> list[bytes]:
        """See `DocumentStream`."""
        return documents(*self._batches.pop(0)) if self._batches else []


def documents(*numbers: int) -> list[bytes]:
    """Small documents."""
    return [bson.encode({"_id": number}) for number in numbers]


def get_more(size: int | None) -> GetMore:
    """A ``getMore``."""
    body = bson.encode({"getMore": bson.Int64(7), "collection": "c", "$db": "db"})
    return GetMore(Request(OpMsg(op_msg(body, request_id=1))), None, 7, size)


def read(stream: DocumentStream, *sizes: int | None) -> list[tuple[list[int], int]]:
    """The documents and the cursor id of each batch."""

    async def main() -> list[tuple[list[int], int]]:
        cursor = StreamCursor(VectorClock(), "db.c", stream)
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


async def test_a_concatenation_opens_its_second_stream_when_the_first_has_ended() -> None:
    opened = []

    async def open_second() -> DocumentStream:
        opened.append("second")
        return Batches([3])

    stream = ConcatenatedStream(PrefetchedStream(documents(1), ListStream(documents(2))), open_second)
    assert [await stream.next_batch(), await stream.next_batch(), opened] == [documents(1), documents(2), []]
    assert [await stream.next_batch(), await stream.next_batch(), opened] == [documents(3), [], ["second"]]
