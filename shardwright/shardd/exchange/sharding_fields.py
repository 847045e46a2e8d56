"""Removing from requests the fields that a plain mongod does not know."""

from collections.abc import Mapping
from typing import Final

from shardwright.sharding.involved_namespaces import INVOLVED_NAMESPACES
from shardwright.sharding.owner_changes import MAY_CHANGE_OWNER
from shardwright.sharding.versions import DATABASE_VERSION, SHARD_VERSION, VERSION_FIELDS
from shardwright.wire.message import CHECKSUM_PRESENT, OpMsg, op_msg
from shardwright.wire.rawbson import Span, append, from_elements, without
from shardwright.wire.request import Request

_EXTENSIONS: Final = frozenset({INVOLVED_NAMESPACES, MAY_CHANGE_OWNER})
_SHARDING_FIELDS: Final = VERSION_FIELDS | _EXTENSIONS


def without_sharding_fields(request: Request, more: bytes = b"") -> bytes:
    """The request's frame without the version fields, with its id, flags and other sections.

    Routers write ``shardVersion`` and ``databaseVersion`` side by side, where one cut removes both; apart they are
    removed as well, at a higher cost.

    Args:
        request: the request.
        more: elements to append to the body.
    """
    body = request.body
    cut = _versions_side_by_side(request.fields)
    if cut is None:
        return with_body(request.message, append(without(body, _SHARDING_FIELDS), more))
    start, end = cut
    return with_body(request.message, from_elements(body[4:start] + body[end : len(body) - 1] + more))


def _versions_side_by_side(fields: Mapping[bytes, Span]) -> tuple[int, int] | None:
    """From where to where the version fields are, if there is nothing in between and no other field to remove."""
    if INVOLVED_NAMESPACES in fields or MAY_CHANGE_OWNER in fields:
        return None
    shard, database = fields.get(SHARD_VERSION), fields.get(DATABASE_VERSION)
    if shard is None or database is None:
        only = shard or database
        return None if only is None else (only[1], only[3])
    first, second = (shard, database) if shard[1] < database[1] else (database, shard)
    return (first[1], second[3]) if first[3] == second[1] else None


def with_body(message: OpMsg, body: bytes) -> bytes:
    """The frame of a request with another body, and without the checksum, which would no longer match."""
    sections = b"".join([sequence.section() for sequence in message.sequences]) if message.sequences else b""
    return op_msg(body, request_id=message.request_id, flags=message.flags & ~CHECKSUM_PRESENT, sections=sections)
