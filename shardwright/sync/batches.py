"""Division of change stream events into batches that are applied as a whole. Pure.

A batch ends where the cluster time changes, so that it contains whole transactions of the source. Each DDL event is a
batch of its own.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from bson.timestamp import Timestamp

from shardwright.sync.changes import Change, Mark

Item = Change | Mark

DOCUMENTS_MAX: Final = 1000
BYTES_MAX: Final = 10_000_000
BUFFER_BYTES_MAX: Final = 64_000_000
"""A larger transaction of the source is applied in parts."""

MEMORY_MAX: Final = 256_000_000

_COPIES: Final = 3
"""Copies of a piece in memory: as documents, as writes, and as the message to the target."""


@dataclass(frozen=True)
class Limits:
    """Size limits of a batch.

    Attributes:
        documents: changes, unless a transaction has more.
        bytes: size of the changes, unless a transaction is larger.
        buffer_bytes: maximum size of the buffer; a larger transaction is applied in parts.
    """

    documents: int = DOCUMENTS_MAX
    bytes: int = BYTES_MAX
    buffer_bytes: int = BUFFER_BYTES_MAX

    @classmethod
    def within(cls, memory: int, *, workers: int, documents: int = DOCUMENTS_MAX, size: int = BYTES_MAX) -> "Limits":
        """Choose limits with which all buffers together fit into ``memory`` bytes.

        Each worker of the copy holds a piece and the writes made from it. The follower holds a batch and a buffer.

        Raises:
            ValueError: there is not enough memory for these.
        """
        left = memory - (workers + 1) * _COPIES * size
        if left < size:
            needed = (workers + 1) * _COPIES * size + size
            raise ValueError(f"{workers} workers with {size:,} bytes each need a limit of {needed:,} bytes or more")
        return cls(documents, size, min(left, BUFFER_BYTES_MAX))


@dataclass(frozen=True)
class Batch:
    """Changes that are applied together.

    Attributes:
        changes: in their order; empty if only the position advances.
        items: number of items taken from the buffer.
        token: the resume token after them.
        time: the cluster time of the source after the batch.
        is_whole: whether the batch has all changes of the source up to this time, so that the target then equals a
            state of the source.
    """

    changes: tuple[Change, ...]
    items: int
    token: bytes
    time: Timestamp
    is_whole: bool


def cut(buffer: Sequence[Item], limits: Limits, *, closes_at_once: bool) -> Batch | None:
    """Cut the next batch; None if more has to be read first.

    Args:
        closes_at_once: whether a mark with the time of an event rules out further events of that time. With several
            shards behind the stream it does not.
    """
    documents = size = buffered = 0
    end: int | None = None
    is_whole = False
    for position, item in enumerate(buffer):
        is_ddl = isinstance(item, Change) and not item.is_of_document
        if is_ddl and end is not None:
            break
        if isinstance(item, Change):
            documents += 1
            size += item.size
            buffered += item.size
            if end is not None and (documents > limits.documents or size > limits.bytes):
                break
        following = buffer[position + 1] if position + 1 < len(buffer) else None
        if _is_boundary(item, following, closes_at_once=closes_at_once):
            end, is_whole = position + 1, closes_at_once or _is_alone(buffer, position)
        elif is_ddl or _is_ddl(following):
            end, is_whole = position + 1, False
        if is_ddl:
            break
    if end is None:
        if buffered <= limits.buffer_bytes:
            return None
        end, is_whole = len(buffer), False
    changes = tuple(item for item in buffer[:end] if isinstance(item, Change))
    last = buffer[end - 1]
    time = last.time if closes_at_once or isinstance(last, Change) else before(last.time)
    return Batch(changes, end, last.token, time, is_whole)


def before(time: Timestamp) -> Timestamp:
    """Return the latest cluster time before another one."""
    return Timestamp(time.time, time.inc - 1) if time.inc else Timestamp(time.time - 1, 2**32 - 1)


def _is_ddl(item: Item | None) -> bool:
    return isinstance(item, Change) and not item.is_of_document


def _is_alone(buffer: Sequence[Item], position: int) -> bool:
    """Whether an item is anything but a mark with the time of the event before it."""
    item = buffer[position]
    return isinstance(item, Change) or position == 0 or buffer[position - 1].time < item.time


def _is_boundary(item: Item, following: Item | None, *, closes_at_once: bool) -> bool:
    """Whether no further event can have the time of this item."""
    if isinstance(item, Mark):
        # A mark without a time of its own is the token of the last event.
        return following is None or following.time > item.time
    if following is None:
        return False
    if isinstance(following, Mark) and closes_at_once:
        return following.time >= item.time
    return following.time > item.time
