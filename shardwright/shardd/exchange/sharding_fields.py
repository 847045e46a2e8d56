"""Removal of the fields that a plain mongod does not accept from requests."""

from operator import itemgetter
from typing import Final

from shardwright.sharding.involved_namespaces import INVOLVED_NAMESPACES
from shardwright.sharding.owner_changes import MAY_CHANGE_OWNER
from shardwright.sharding.versions import VERSION_FIELDS
from shardwright.wire.rawbson import Span, append, without_spans
from shardwright.wire.request import Request

_SHARDING_FIELDS: Final = (*VERSION_FIELDS, INVOLVED_NAMESPACES, MAY_CHANGE_OWNER)
_start_of = itemgetter(1)


def without_sharding_fields(request: Request, more: bytes = b"") -> bytes:
    """Return a request's frame without sharding fields, with its id, flags and other sections.

    Args:
        more: elements to append to the body.
    """
    found = sharding_spans(request)
    if not found:
        return request.message.frame_with(append(request.body, more))
    return request.message.frame_with(without_spans(request.body, found, more))


def sharding_spans(request: Request) -> list[Span]:
    """Return the spans of the sharding fields in a request, in order."""
    fields = request.fields
    return sorted([fields[name] for name in _SHARDING_FIELDS if name in fields], key=_start_of)
