"""The documents that are left of a cursor, kept by this daemon for its client."""

from collections import deque
from dataclasses import dataclass

from shardwright.wire import rawbson
from shardwright.wire.limits import BSON_OBJECT_BYTES_MAX


@dataclass(slots=True)
class Kept:
    """The documents that are left of a cursor.

    Attributes:
        reply: the body of a reply, as a model for others.
        documents: the documents.
        size: how many bytes they have.
    """

    reply: bytes
    documents: deque[bytes]
    size: int


def without_batch(body: bytes) -> bytes:
    """The body of a reply to ``getMore``, without its documents."""
    cursor = rawbson.find(body, b"cursor")
    assert cursor is not None
    value = body[cursor[2] : cursor[3]]
    batch = rawbson.index(value)[b"nextBatch"]
    return rawbson.with_value(body, cursor, rawbson.with_value(value, batch, rawbson.array_of_documents([])))


def taken_from(kept: Kept, batch_size: int) -> list[bytes]:
    """Take the documents of the next batch."""
    taken: list[bytes] = []
    size = 0
    while kept.documents and (not batch_size or len(taken) < batch_size):
        size += len(kept.documents[0])
        if taken and size > BSON_OBJECT_BYTES_MAX:
            break
        taken.append(kept.documents.popleft())
    kept.size -= sum(map(len, taken))
    return taken
