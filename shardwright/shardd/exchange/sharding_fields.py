"""Cutting the fields off a request that a plain mongod does not know."""

from typing import Final

from shardwright.sharding.involved_namespaces import INVOLVED_NAMESPACES
from shardwright.sharding.versions import DATABASE_VERSION, SHARD_VERSION, VERSION_FIELDS
from shardwright.wire.message import CHECKSUM_PRESENT, OpMsg, op_msg
from shardwright.wire.rawbson import append, from_elements, without
from shardwright.wire.request import Request

_SHARDING_FIELDS: Final = VERSION_FIELDS | {INVOLVED_NAMESPACES}


def without_sharding_fields(request: Request, more: bytes = b"") -> bytes:
    """The request's frame less the fields about versions, with its id, flags and other sections.

    Routers put ``shardVersion`` and ``databaseVersion`` at the end of the body, where one cut takes them off; from
    elsewhere they are cut out as well.

    Args:
        request: the request.
        more: elements to be put at the end of the body.
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
    """The frame of a request with another body, and without the checksum that would no longer be right."""
    sections = b"".join([sequence.section() for sequence in message.sequences]) if message.sequences else b""
    return op_msg(body, request_id=message.request_id, flags=message.flags & ~CHECKSUM_PRESENT, sections=sections)
