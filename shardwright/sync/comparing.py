"""Comparison of collections by digests: pieces are read at one moment of both ends.

All comparisons raise `NoMomentError` if no such moment is found.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar

from bson.raw_bson import RawBSONDocument
from bson.timestamp import Timestamp
from pymongo.errors import OperationFailure

from shardwright.sync.changes import Value
from shardwright.sync.ends import RAW, End, repeated
from shardwright.sync.ranges import (
    Bound,
    Differences,
    Hashes,
    differences,
    digest,
    find_command,
    hashes,
    ids_filter,
    last_bound,
)

PIECE_DOCUMENTS: Final = 1000
IDS_AT_ONCE: Final = 500
MOMENTS_MAX: Final = 30
MOMENT_PAUSE_SECONDS: Final = 1.0
RECHECKS: Final = 5
"""Maximum number of comparisons of documents that seem to differ. A snapshot of a sharded source may have transactions
that several shards are committing and the change stream does not show yet."""

SNAPSHOT_GONE: Final = frozenset({239, 246})
"""SnapshotTooOld, and SnapshotUnavailable, after a change to the collection's shape."""

Moment = tuple[Timestamp, Timestamp]
"""Cluster times of source and target at which the target should equal that state of the source."""

Moments = Callable[[], Awaitable[Moment]]
"""Returns a moment; a later call returns a later moment."""


Result = TypeVar("Result")


NO_DIFFERENCES: Final = Differences()


class NoMomentError(Exception):
    """No moment was found at which both ends could be read."""


class _GoneError(Exception):
    """A snapshot can no longer be read, or not yet."""


@dataclass(frozen=True)
class PieceCompared:
    """The result for a piece of a collection.

    Attributes:
        last: its last ``_id``; None if the piece reaches to the end.
        checked: the ``_id`` values that were compared, if something differs.
    """

    last: Bound
    documents: int
    target_documents: int
    checked: frozenset[Value] = frozenset()
    found: Differences = NO_DIFFERENCES


async def piece_compared(
    source: End, target: End, namespace: str, low: Bound, moments: Moments, *, finds: bool = True
) -> PieceCompared:
    """Compare the next piece of a collection. It has at most `PIECE_DOCUMENTS` documents of each end.

    Documents that seem to differ are read again, at later moments, before they are reported.

    Args:
        low: the ``_id`` after which the piece begins.
        finds: whether to find the differences; otherwise the documents are only counted.
    """

    async def attempt(at: Moment) -> PieceCompared:
        ours = await _read(source, namespace, low, None, at[0])
        last = last_bound(ours)
        if 0 < len(ours) < PIECE_DOCUMENTS and not await _has_more(source, namespace, last, None, at[0]):
            last = None  # later moments have later documents, and the round would never end
        theirs = await _read(target, namespace, low, last, at[1])
        end = last_bound(theirs)
        if end not in (None, last) and await _has_more(target, namespace, end, last, at[1]):
            # The target has more documents up to there than fit into a piece. So they end the piece.
            last = end
            ours = await _read(source, namespace, low, last, at[0]) if ours else ours
        counted = PieceCompared(last, len(ours), len(theirs))
        if not finds:
            return counted
        one, other = [hashes(bytes(each.raw) for each in documents) for documents in (ours, theirs)]
        if digest(one) == digest(other):
            return counted
        found = differences(one, other)
        return replace(counted, checked=frozenset(found.all), found=found)

    piece = await _at_a_moment(attempt, moments)
    if not piece.checked:
        return piece
    found = await rechecked(source, target, namespace, piece.checked, moments)
    return replace(piece, found=found)


async def rechecked(source: End, target: End, namespace: str, ids: Collection[Value], moments: Moments) -> Differences:
    """Compare documents at several successive moments, and return those that always differ."""
    found = await ids_compared(source, target, namespace, ids, moments)
    for _ in range(RECHECKS - 1):
        if not found.all:
            break
        await asyncio.sleep(MOMENT_PAUSE_SECONDS)
        found = await ids_compared(source, target, namespace, found.all, moments)
    return found


async def ids_compared(
    source: End, target: End, namespace: str, ids: Collection[Value], moments: Moments
) -> Differences:
    """Compare documents by their ``_id``."""
    every = list(ids)
    missing: list[Value] = []
    extra: list[Value] = []
    different: list[Value] = []
    for start in range(0, len(every), IDS_AT_ONCE):
        some = every[start : start + IDS_AT_ONCE]

        async def attempt(at: Moment, some: list[Value] = some) -> Differences:
            one = await _hashes_of(source, namespace, some, at[0])
            return differences(one, await _hashes_of(target, namespace, some, at[1]))

        found = await _at_a_moment(attempt, moments)
        missing += found.missing
        extra += found.extra
        different += found.different
    return Differences(tuple(missing), tuple(extra), tuple(different))


async def _at_a_moment(attempt: Callable[[Moment], Awaitable[Result]], moments: Moments) -> Result:
    for _ in range(MOMENTS_MAX):
        try:
            return await attempt(await moments())
        except _GoneError:
            await asyncio.sleep(MOMENT_PAUSE_SECONDS)
    raise NoMomentError("no moment at which both ends can be read: is the history of snapshots too short?")


async def _hashes_of(end: End, namespace: str, ids: list[Value], time: Timestamp) -> Hashes:
    found: dict[Value, frozenset[bytes]] = {}
    left = set(ids)
    while left:
        command = find_command(namespace.partition(".")[2], None, None, 2 * IDS_AT_ONCE, _concern(time))
        documents = await _find(end, namespace, {**command, "filter": ids_filter(left)})
        # With a collation, a query also finds documents with other values.
        some = {key: each for key, each in hashes(bytes(each.raw) for each in documents).items() if key in left}
        if not some:
            break
        # A reply has at most 16 MB, so the remaining documents are read again.
        found |= some
        left -= some.keys()
    return found


async def _read(
    end: End, namespace: str, low: Bound, high: Bound, time: Timestamp, *, limit: int | None = None
) -> list[RawBSONDocument]:
    limit = PIECE_DOCUMENTS if limit is None else limit
    return await _find(end, namespace, find_command(namespace.partition(".")[2], low, high, limit, _concern(time)))


async def _has_more(end: End, namespace: str, low: Bound, high: Bound, time: Timestamp) -> bool:
    return bool(await _read(end, namespace, low, high, time, limit=1))


async def _find(end: End, namespace: str, command: Mapping[str, Any]) -> list[RawBSONDocument]:
    async def attempt() -> Any:  # noqa: ANN401 - a reply
        database = end.client.get_database(namespace.partition(".")[0])
        try:
            return await database.command(dict(command), codec_options=RAW)
        except OperationFailure as error:
            if error.code in SNAPSHOT_GONE:
                raise _GoneError from error
            raise

    reply = await repeated(attempt)
    return list(reply["cursor"]["firstBatch"])


def _concern(time: Timestamp) -> dict[str, Any]:
    return {"level": "snapshot", "atClusterTime": time}
