"""Removing from requests the fields that a plain mongod does not know."""

from typing import Final

from shardwright.sharding.involved_namespaces import INVOLVED_NAMESPACES
from shardwright.sharding.versions import DATABASE_VERSION, SHARD_VERSION, VERSION_FIELDS
from shardwright.wire.message import CHECKSUM_PRESENT, OpMsg, op_msg
from shardwright.wire.rawbson import append, from_elements, without
from shardwright.wire.request import Request

_SHARDING_FIELDS: Final = VERSION_FIELDS | {INVOLVED_NAMESPACES}


def without_sharding_fields(request: Request, more: bytes = b"") -> bytes:
    """The request's frame without the version fields, with its id, flags and other sections.

    Routers append ``shardVersion`` and ``databaseVersion`` to the body, where one cut removes both; elsewhere they are
    removed as well, at a higher cost.

    Args:
        request: the request.
        more: elements to append to the body.
    """
    body, fields = request.body, request.fields
    last = len(body) - 1
    cut = last
    shard, database = fields.get(SHARD_VERSION), fields.get(DATABASE_VERSION)
    if database is not None and database[3] == cut:
        cut = database[1]
    if shard is not None and shard[3] == cut:
        cut = shard[1]
        if database is not None and database[3] == cut:
            cut = database[1]
    is_all = (
        (shard is None or shard[1] >= cut)
        and (database is None or database[1] >= cut)
        and INVOLVED_NAMESPACES not in fields
    )
    new_body = from_elements(body[4:cut] + more) if is_all else append(without(body, _SHARDING_FIELDS), more)
    return with_body(request.message, new_body)


def with_body(message: OpMsg, body: bytes) -> bytes:
    """The frame of a request with another body, and without the checksum, which would no longer match."""
    sections = b"".join([sequence.section() for sequence in message.sequences]) if message.sequences else b""
    return op_msg(body, request_id=message.request_id, flags=message.flags & ~CHECKSUM_PRESENT, sections=sections)
