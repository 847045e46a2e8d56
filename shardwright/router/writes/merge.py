"""Combining errors of several shards into those that a single server would return, with MongoDB's texts."""

from collections.abc import Mapping, Sequence
from struct import Struct
from typing import Any, Final

import bson

from shardwright.sharding.bson_text import document_text
from shardwright.wire import rawbson
from shardwright.wire.error_codes import ErrorCode, code_name
from shardwright.wire.errors import CommandError
from shardwright.wire.rawbson import INT32, decode_document, raw_document

ERROR_MESSAGE_BYTES_MAX: Final = 1 << 20
"""How much text the errors of one reply may hold; later ones get an empty ``errmsg``, as in mongod."""

_WRITE_CONCERN_ERROR: Final = "writeConcernError"

_pack_int32 = Struct("<i").pack


def error_document(error: CommandError) -> bytes:
    """A ``writeErrors`` entry for a failure without an entry from a shard; `with_index` sets its index.

    The write concern error of a command that failed as a whole, as one that was killed, is not one of its statements.
    """
    extra = {name: value for name, value in error.extra.items() if name != _WRITE_CONCERN_ERROR}
    return bson.encode({"index": 0, "code": error.code, "errmsg": error.message, **extra})


def with_index(document: bytes, index: int) -> bytes:
    """An entry of ``writeErrors`` with the index that its statement has in the client's batch."""
    span = rawbson.index(document).get(b"index")
    element = rawbson.element(b"index", INT32, _pack_int32(index))
    if span is None:
        return rawbson.from_elements(element + document[4:-1])
    return rawbson.from_elements(document[4 : span[1]] + element + document[span[3] : -1])


def with_limited_messages(documents: Sequence[bytes]) -> list[bytes]:
    """The entries of ``writeErrors``, without the messages that would make the reply too large."""
    room = ERROR_MESSAGE_BYTES_MAX
    limited: list[bytes] = []
    for document in documents:
        span = rawbson.index(document).get(b"errmsg")
        if span is not None:
            if room <= 0:
                empty = rawbson.element(b"errmsg", rawbson.STRING, b"\x01\0\0\0\0")
                document = rawbson.from_elements(document[4 : span[1]] + empty + document[span[3] : -1])
            room -= span[3] - span[2]
        limited.append(document)
    return limited


def combined_error(documents: Sequence[bytes]) -> bytes:
    """One error for a statement that failed on several shards: theirs if they agree, else one that lists them all."""
    if len(documents) == 1:
        return documents[0]
    decoded = [decode_document(document) for document in documents]
    if len({error.get("code") for error in decoded}) == 1:
        return documents[0]
    messages = " :: and :: ".join(str(error.get("errmsg", "")) for error in decoded)
    return error_document(
        CommandError(
            ErrorCode.MultipleErrorsOccurred,
            f"multiple errors for op : {messages}",
            extra={"errInfo": {"causedBy": [raw_document(document) for document in documents]}},
        )
    )


def merged_write_concern_error(errors: Sequence[tuple[str, bytes]]) -> dict[str, Any]:
    """The ``writeConcernError`` of a batch from those of its shards.

    Args:
        errors: at least one pair of a shard and the raw error it reported.
    """
    decoded = [(shard, decode_document(error)) for shard, error in errors]
    if len(decoded) == 1:
        shard, error = decoded[0]
        code = int(error.get("code", ErrorCode.WriteConcernFailed))
        message = _concern_message(shard, error)
    else:
        code = ErrorCode.WriteConcernFailed
        message = "multiple errors reported : " + " :: and :: ".join(
            f"{code_name(error.get('code', code))}: {_concern_message(shard, error)}" for shard, error in decoded
        )
    return {"code": int(code), "codeName": code_name(code), "errmsg": message, "errInfo": {}}


def _concern_message(shard: str, error: Mapping[str, Any]) -> str:
    details = f"; Error details: {document_text(bson.encode(error['errInfo']))}" if error.get("errInfo") else ""
    return f"{error.get('errmsg', '')}{details} at {shard}"
