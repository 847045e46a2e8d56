"""Having a mongod read everything that others send before it inserts the first document.

``$out``, and ``$merge`` with ``whenMatched: "fail"``, insert what they write. A mongod that is not a shard of MongoDB's
own counts its operation as done after the first batch, and ends itself when it then waits for another server
(``Invariant failure !isDone()`` in ``curop.h``, seen on 6.0.5). So what waits has to be over by then: a ``$sort``
returns nothing before it has read all. One by a field that no document has keeps the order.
"""

from collections.abc import Sequence
from typing import Final

from shardwright.router.reads.pipeline import Stage
from shardwright.wire.rawbson import append, encode_document, encode_elements, without

_ALLOW_DISK_USE: Final = b"allowDiskUse"
_READ_ALL: Final = Stage("$sort", encode_document({"$sort": {"readBeforeWriting": 1}}), (0, 0, 0, 0))
_READING_ALL: Final = frozenset({"$bucket", "$bucketAuto", "$group", "$sort", "$sortByCount"})


def reading_before_writing(stages: Sequence[Stage]) -> tuple[Stage, ...]:
    """The stages of a merger, of which one reads everything if the last one inserts.

    Args:
        stages: what follows ``$mergeCursors``.
    """
    if not stages or not _inserts(stages[-1]) or any(stage.name in _READING_ALL for stage in stages):
        return tuple(stages)
    return (*stages[:-1], _READ_ALL, stages[-1])


def with_disk(body: bytes) -> bytes:
    """A command that may sort more than fits into memory, whatever the client allows for its own stages."""
    return append(without(body, (_ALLOW_DISK_USE,)), encode_elements({_ALLOW_DISK_USE.decode(): True}))


def _inserts(stage: Stage) -> bool:
    if stage.name != "$merge":
        return stage.name == "$out"
    given = stage.specification
    return isinstance(given, dict) and given.get("whenMatched") == "fail"
