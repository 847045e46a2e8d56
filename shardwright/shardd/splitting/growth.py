"""The settings of auto-splitting, and the growth of a collection by a write, from request and reply without decoding.

Inserted documents count with their size. MongoDB counts the whole new version of an updated document, which the daemon
does not see. Here an update counts with the size of its statement, once for each modified document, because that is
roughly what it adds. Updates by a pipeline can enlarge a document by more than their own size, so they are
underestimated. Migrated documents are not counted, because a migration brings no more than a chunk's worth of data.

Settings are the cluster's, from ``config.settings``, and the server parameters of this shard. The parameters are set at
start and by ``setParameter``; mongod does not have them.
"""

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

from bson.int64 import Int64
from bson.objectid import ObjectId
from bson.timestamp import Timestamp

from shardwright.shardd.exchange.remote_sets import Catalog
from shardwright.sharding.catalog.settings import (
    AUTO_SPLIT_ID,
    BALANCER_ID,
    CHUNK_SIZE_ID,
    AutoSplitSettings,
    BalancerSettings,
    ChunkSizeSettings,
)
from shardwright.sharding.shard_key import ShardKeyPattern
from shardwright.sharding.targeting.filters import exact_shard_key
from shardwright.sharding.time_series import IS_TIME_SERIES_NAMESPACE, TimeSeriesFields
from shardwright.wire.errors import CommandError
from shardwright.wire.message import BODY_AT
from shardwright.wire.rawbson import (
    EMPTY_DOCUMENT,
    INT32,
    OBJECT,
    InvalidBSONError,
    decode_document,
    decode_value,
    element,
    encode_document,
    find,
)
from shardwright.wire.request import Request

_PAYLOADS: Final = {
    "insert": b"documents",
    "update": b"updates",
    "findAndModify": b"update",
    "findandmodify": b"update",
}
"""For each command that makes collections grow, the argument with the added data."""

_OP_TIME: Final = {"ts": Timestamp(0, 0), "t": Int64(0)}

_REST_AT: Final = BODY_AT + len(encode_document({"n": 0, "electionId": ObjectId(), "opTime": _OP_TIME})) - 1
"""The offset of the next field after the ones at the beginning of every reply of a mongod to a write."""

_ONE_MODIFIED: Final = element(b"nModified", INT32, (1).to_bytes(4, "little"))

_ARRAYS: Final = {"insert": b"documents", "update": b"updates"}


@dataclass(frozen=True, slots=True)
class SplitSettings:
    """The cluster's settings.

    Attributes:
        chunk_bytes_max: the default chunk size, for collections that do not set one.
        is_enabled: whether chunks may be split as they grow (``sh.enableAutoSplit``).
        may_move: whether the balancer is on, so that the hot end of a collection may be moved to another shard.
    """

    chunk_bytes_max: int = ChunkSizeSettings().value_bytes
    is_enabled: bool = True
    may_move: bool = True

    @classmethod
    async def read(cls, catalog: Catalog) -> "SplitSettings":
        """Read the present settings.

        Raises:
            CommandError: the config servers cannot be reached; BadValue or TypeMismatch, a setting is invalid.
        """
        query = {"_id": {"$in": [AUTO_SPLIT_ID, BALANCER_ID, CHUNK_SIZE_ID]}}
        found = {each["_id"]: each for each in map(decode_document, await catalog.find("settings", query))}
        return cls(
            ChunkSizeSettings.from_document(found.get(CHUNK_SIZE_ID)).value_bytes,
            AutoSplitSettings.from_document(found.get(AUTO_SPLIT_ID)).enabled,
            BalancerSettings.from_document(found.get(BALANCER_ID)).mode != "off",
        )


GROWTH_FRACTION: Final = 0.2
"""MongoDB's value: it looks for split points whenever a fifth of the chunk size has been written to a chunk."""


@dataclass
class SplitParameters:
    """The parameters of one shard daemon.

    Attributes:
        is_enabled: whether chunks are split as they grow (``autoSplitChunks``). If not, the balancer splits off only
            the ranges that it moves, as in MongoDB since 6.0.3.
        growth_fraction: the fraction of the chunk size to write before the next search for split points
            (``autoSplitGrowthFraction``).
    """

    is_enabled: bool = True
    growth_fraction: float = GROWTH_FRACTION


def grown_bytes(request: Request, reply: bytes | None) -> int:
    """Return the estimated growth; 0 for requests that add nothing.

    Args:
        request: a request that mongod has executed.
        reply: the reply frame; None if the client wanted none.
    """
    payload = _PAYLOADS.get(request.name)
    if payload is None:
        return 0
    size = _payload_bytes(request, payload)
    if request.name != "update":
        return size
    return growth_of_update(reply, size, lambda: len(request.documents(b"updates")))


def _payload_bytes(request: Request, name: bytes) -> int:
    for sequence in request.message.sequences:
        if sequence.name == name:
            return len(sequence.data)
    span = request.fields.get(name)
    return 0 if span is None else span[3] - span[2]


def growth_of_update(reply: bytes | None, size: int, count: Callable[[], int]) -> int:
    """Return the estimated growth by updates; the reply is None if the client wanted none."""
    if reply is None or reply.startswith(_ONE_MODIFIED, _REST_AT):
        return size
    # Not `reply.find`: the ``_id`` of an upserted document may have fields of any name.
    span = find(reply, b"nModified", BODY_AT)
    modified = 0 if span is None else decode_value(reply, span)
    if modified == 1:
        return size
    if not modified:
        return 0 if find(reply, b"upserted", BODY_AT) is None else size
    return size * modified // max(1, count())


class WrittenKeys:
    """The shard keys written by a request, which is parsed once for all positions.

    Args:
        request: a request for which `grown_bytes` is not 0.
        time_series: the time-series fields of a buckets collection.
    """

    def __init__(self, request: Request, pattern: ShardKeyPattern, time_series: TimeSeriesFields | None = None) -> None:
        self._request = request
        self._pattern = pattern
        self._time_series = time_series
        try:
            payload = _ARRAYS.get(request.name)
            self._documents = [] if payload is None else request.documents(payload)
        except CommandError:
            self._documents = []
        self._ends = list(accumulate(map(len, self._documents)))
        self._found: dict[int, bytes | None] = {}

    def at(self, position: float) -> bytes | None:
        """Return the key bytes at a position, from 0 up to 1, among all documents; None if they are not fixed."""
        number = bisect_right(self._ends, position * self._ends[-1]) if self._ends else 0
        number = min(number, max(len(self._documents) - 1, 0))
        if number not in self._found:
            self._found[number] = self._key_of(number)
        return self._found[number]

    def _key_of(self, number: int) -> bytes | None:
        request, document = self._request, self._documents[number] if self._documents else EMPTY_DOCUMENT
        is_of_series = IS_TIME_SERIES_NAMESPACE in request.fields
        try:
            if request.name == "insert":
                if self._time_series is not None and is_of_series:
                    document = self._time_series.bucket_of(document)
                return self._pattern.key_bytes_of_document(document)
            if is_of_series:
                return None  # its query is about measurements
            if request.name == "update":
                span = find(document, b"q")
                query = None if span is None or span[0] != OBJECT else document[span[2] : span[3]]
            else:
                query = request.raw_object(b"query")
            key = None if query is None else exact_shard_key(query, self._pattern)
        except (CommandError, InvalidBSONError):
            # mongod has rejected and reported the same bytes.
            return None
        return None if key is None else self._pattern.key_bytes(key)
