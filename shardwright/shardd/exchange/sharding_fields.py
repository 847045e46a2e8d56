"""Removing from requests the fields that a plain mongod does not know."""

from operator import itemgetter
from typing import Final

from shardwright.sharding.involved_namespaces import INVOLVED_NAMESPACES
from shardwright.sharding.owner_changes import MAY_CHANGE_OWNER
from shardwright.sharding.versions import VERSION_FIELDS
from shardwright.wire.rawbson import append, without_spans
from shardwright.wire.request import Request

_SHARDING_FIELDS: Final = (*VERSION_FIELDS, INVOLVED_NAMESPACES, MAY_CHANGE_OWNER)
_start_of = itemgetter(1)


def without_sharding_fields(request: Request, more: bytes = b"") -> bytes:
    """The request's frame without the version fields and others of this kind, with its id, flags and other sections.

    Args:
        request: the request.
        more: elements to append to the body.
    """
    fields = request.fields
    found = [fields[name] for name in _SHARDING_FIELDS if name in fields]
    if not found:
        return request.message.frame_with(append(request.body, more))
    return request.message.frame_with(without_spans(request.body, sorted(found, key=_start_of), more))
