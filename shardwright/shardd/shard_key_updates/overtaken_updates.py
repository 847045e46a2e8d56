"""Whether an update that was executed as previewed did nothing because another writer was faster. Pure.

A DuplicateKey of an insert may also be permanent: then the next preview fails with it or, after the last attempt, it is
the result.
"""

from collections.abc import Mapping
from typing import Any

from shardwright.shardd.shard_key_updates.preview import Preview
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.rawbson import decode_value, index


def is_update_overtaken(preview: Preview, reply: Mapping[str, Any], *, is_last: bool) -> bool:
    """Whether the statement of an ``update`` has to be previewed again.

    Args:
        preview: its preview.
        reply: the reply to the statement alone.
        is_last: whether this was the last attempt.
    """
    errors = reply.get("writeErrors", ())
    if preview.before is not None:
        return not errors and not reply.get("n")
    is_duplicate = any(error["code"] == ErrorCode.DuplicateKey for error in errors)
    return preview.after is not None and is_duplicate and not is_last


def is_find_and_modify_overtaken(preview: Preview, reply: bytes, *, is_last: bool) -> bool:
    """Whether a ``findAndModify`` has to be previewed again; ``reply`` is the body of its reply."""
    fields = index(reply)
    if not decode_value(reply, fields[b"ok"]):
        is_duplicate = b"code" in fields and decode_value(reply, fields[b"code"]) == ErrorCode.DuplicateKey
        return preview.before is None and preview.after is not None and is_duplicate and not is_last
    outcome = decode_value(reply, fields[b"lastErrorObject"])
    return preview.before is not None and not outcome.get("n")
