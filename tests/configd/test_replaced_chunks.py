"""Writing the first chunks of a collection while mongod still inserts them for a killed process."""

from collections.abc import Mapping
from typing import Any
from uuid import uuid4

import pytest
import trio
import trio.testing
from bson.binary import Binary
from bson.int64 import Int64
from bson.objectid import ObjectId

from shardwright.configd.catalog.catalog import Catalog
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError

UUID = Binary.from_uuid(uuid4())


def chunks(count: int, attempt: str) -> list[dict[str, Any]]:
    """Return the chunks of an attempt, which has bounds of its own."""
    return [{"_id": f"{attempt}{n}", "uuid": UUID, "min": f"{attempt}{n}", "lastmod": n} for n in range(count)]


class Mongod:
    """A mongod that has one chunk for each version, and inserts another one of an earlier attempt before each command.

    Attributes:
        chunks: the chunks by their versions.
        left: the chunks of the earlier attempt that remain to be inserted.
    """

    def __init__(self, left: list[dict[str, Any]]) -> None:
        self.chunks: dict[int, Mapping[str, Any]] = {}
        self.left = left

    async def command(self, _db: str, command: Mapping[str, Any]) -> dict[str, Any]:
        """Run a command."""
        await trio.lowlevel.checkpoint()
        if self.left and self._insert(self.left.pop(0)):
            self.left = []
        if "delete" in command:
            self.chunks = {}
        elif "count" in command:
            return {"n": Int64(len(self.chunks))}
        else:
            for index, chunk in enumerate(command["documents"]):
                if self._insert(chunk):
                    error = {"index": index, "code": ErrorCode.DuplicateKey, "errmsg": "duplicate key"}
                    return {"n": index, "writeErrors": [error]}
        return {"n": 1}

    def _insert(self, chunk: Mapping[str, Any]) -> bool:
        """Insert a chunk; return whether there is one with its version."""
        return self.chunks.setdefault(chunk["lastmod"], chunk) is not chunk


def replace(mongod: Mongod, count: int) -> list[str]:
    """Write chunks; return the lower bounds of the chunks that are there."""
    catalog = Catalog(mongod, ObjectId())
    clock = trio.testing.MockClock(autojump_threshold=0)
    trio.run(catalog.replace_chunks, UUID, chunks(count, "new"), clock=clock)
    return [each["min"] for each in mongod.chunks.values()]


@pytest.mark.parametrize("inserted", range(6))
@pytest.mark.parametrize("count", [1, 3, 6])
def test_no_chunk_of_a_killed_process_remains(inserted: int, count: int) -> None:
    mongod = Mongod(chunks(6, "old")[inserted:])
    assert replace(mongod, count) == [each["min"] for each in chunks(count, "new")]
    assert mongod.left == []


def test_other_chunks_end_the_attempts() -> None:
    mongod = Mongod(chunks(1_000, "old")[6:])
    with pytest.raises(CommandError) as failure:
        replace(mongod, 1)
    assert failure.value.code == ErrorCode.DuplicateKey
