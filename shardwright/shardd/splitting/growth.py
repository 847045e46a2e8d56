"""By how much a write makes a collection grow, as far as request and reply show it without decoding documents.

Inserted documents count with their size. MongoDB counts the whole new version of an updated document, which the daemon
does not see. Here an update counts with the size of its statement, once for each document that it has modified: what
grows documents is what statements add to them. Updates by a pipeline, which can enlarge a document by more than
their own size, are underestimated; documents that migrations bring are not counted at all, because a migration brings
no more than a chunk's worth of data.
"""

from struct import Struct
from typing import Final

from shardwright.sharding.shard_key import ShardKeyPattern
from shardwright.sharding.targeting.exact_key import exact_shard_key
from shardwright.sharding.time_series import IS_TIME_SERIES_NAMESPACE, TimeSeriesFields
from shardwright.wire.errors import CommandError
from shardwright.wire.rawbson import OBJECT, InvalidBSONError, find
from shardwright.wire.request import Request

_PAYLOADS: Final = {
    "insert": b"documents",
    "update": b"updates",
    "findAndModify": b"update",
    "findandmodify": b"update",
}
"""For each command that makes collections grow, the argument with what it adds."""

_MODIFIED: Final = b"\x10nModified\0"
_UPSERTED: Final = b"\x04upserted\0"
_unpack_int32: Final = Struct("<i").unpack_from


def grown_bytes(request: Request, reply: bytes | None) -> int:
    """The estimated growth; 0 for requests that add nothing.

    Args:
        request: a request that mongod has executed.
        reply: the frame of its reply; None if the client wanted none.
    """
    payload = _PAYLOADS.get(request.name)
    if payload is None:
        return 0
    size = _payload_bytes(request, payload)
    return _updated_bytes(request, reply, size) if request.name == "update" else size


def _payload_bytes(request: Request, name: bytes) -> int:
    for sequence in request.message.sequences:
        if sequence.name == name:
            return len(sequence.data)
    span = request.fields.get(name)
    return 0 if span is None else span[3] - span[2]


def _updated_bytes(request: Request, reply: bytes | None, size: int) -> int:
    if reply is None:
        return size
    at = reply.find(_MODIFIED)
    modified = _unpack_int32(reply, at + len(_MODIFIED))[0] if at >= 0 else 0
    if modified == 1:
        return size
    if not modified:
        return size if _UPSERTED in reply else 0
    return size * modified // max(1, len(request.documents(b"updates")))


def key_written(
    request: Request, pattern: ShardKeyPattern, position: float, time_series: TimeSeriesFields | None = None
) -> bytes | None:
    """The key bytes of the document at a position of what a request has written; None if the request does not fix them.

    Args:
        request: a request for which `grown_bytes` is not 0.
        pattern: the shard key.
        position: from 0 up to but not including 1, among the bytes of all documents or statements.
        time_series: of a collection of buckets, whose measurements the request may be about.
    """
    try:
        if request.name == "insert":
            document = _document_at(request.documents(b"documents"), position)
            if time_series is not None and IS_TIME_SERIES_NAMESPACE in request.fields:
                document = time_series.bucket_of(document)
            return pattern.key_bytes_of_document(document)
        if IS_TIME_SERIES_NAMESPACE in request.fields:
            return None  # its query is about measurements
        if request.name == "update":
            statement = _document_at(request.documents(b"updates"), position)
            span = find(statement, b"q")
            query = None if span is None or span[0] != OBJECT else statement[span[2] : span[3]]
        else:
            query = request.raw_object(b"query")
        key = None if query is None else exact_shard_key(query, pattern)
    except (CommandError, InvalidBSONError):
        # mongod has found fault with the same bytes, and has reported it.
        return None
    return None if key is None else pattern.key_bytes(key)


def _document_at(documents: list[bytes], position: float) -> bytes:
    rest = position * sum(map(len, documents))
    for document in documents:
        rest -= len(document)
        if rest < 0:
            return document
    return documents[-1]
