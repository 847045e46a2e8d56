"""``$listSessions`` and ``$listLocalSessions`` list the user's own sessions if they name nobody. Pure.

Shards are asked by the cluster, so the router names the user there.
"""

from collections.abc import Mapping
from typing import Any, Final

from shardwright.daemon.user_names import UserName
from shardwright.wire.rawbson import ARRAY, decode_document, encode_document
from shardwright.wire.request import Request
from shardwright.wire.stages import with_stages

LISTS_OF_SESSIONS: Final = ("$listLocalSessions", "$listSessions")
"""The stages."""

_PIPELINE: Final = b"pipeline"
_MARK: Final = b"Sessions"


def names_others(argument: Any) -> bool:  # noqa: ANN401 - whatever a client sent
    """Whether one of the stages may list sessions of others than who sends it: no names mean one's own."""
    return not isinstance(argument, Mapping) or bool(argument.get("users") or argument.get("allUsers"))


def with_own_sessions(request: Request, user: UserName) -> Request:
    """The request with the user's name in the stage that it begins with, if that lists the sessions of nobody else.

    Args:
        request: an ``aggregate``.
        user: who sends it.
    """
    span = request.fields.get(_PIPELINE)
    if span is None or span[0] != ARRAY or _MARK not in request.body:
        return request
    stages = request.documents(_PIPELINE)
    first = decode_document(stages[0]) if stages else {}
    name = next(iter(first), "")
    if name not in LISTS_OF_SESSIONS or names_others(first[name]):
        return request
    own = encode_document({name: {"users": [user.to_document()]}})
    return request.with_body(with_stages(request.body, [own, *stages[1:]]))
