"""The section ``shardingStatistics`` of ``serverStatus``, which a plain mongod does not have."""

from collections.abc import Mapping
from typing import Any, Final

from shardwright.wire.message import with_body
from shardwright.wire.rawbson import OBJECT, append, decode_value, element, encode_document, find
from shardwright.wire.request import Request
from shardwright.wire.transport.client import response_body

_SECTION: Final = b"shardingStatistics"


def with_sharding_statistics(frame: bytes | None, request: Request, section: Mapping[str, Any]) -> bytes | None:
    """mongod's reply to ``serverStatus`` with the daemon's section.

    Args:
        frame: the reply.
        request: the command, which may leave the section out by ``{shardingStatistics: 0}``.
        section: what the daemon has counted; nothing is added if it is empty.
    """
    if frame is None or not section or request.get(_SECTION) in (0, False):
        return frame
    body = response_body(frame)
    ok = find(body, b"ok")
    if ok is None or not decode_value(body, ok):
        return frame
    return with_body(frame, append(body, element(_SECTION, OBJECT, encode_document(section))))
