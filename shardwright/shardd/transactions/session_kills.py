"""Which transactions the commands that kill sessions mean. Pure."""

from collections.abc import Callable
from typing import Final

from shardwright.sharding import session_arguments
from shardwright.sharding.session_cache import SessionId
from shardwright.wire.rawbson import decode_value, index
from shardwright.wire.request import Request

KILLS: Final = frozenset({"killAllSessions", "killAllSessionsByPattern", "killSessions"})


def is_killed_by(request: Request) -> Callable[[bytes], bool]:
    """Whether a command kills a session (`session_keys.session_key`); with a session, its child sessions are killed.

    Args:
        request: one of `KILLS`, which mongod has executed.
    """
    if request.name == "killSessions":
        named = session_arguments.sessions(request) or None
    elif request.name == "killAllSessionsByPattern":
        named = session_arguments.patterns(request)
    else:
        # No session belongs to a user, since nobody is authenticated.
        named = set() if session_arguments.users(request) else None
    return lambda session: named is None or _session_of(session) in named


def _session_of(session: bytes) -> SessionId:
    fields = index(session)
    return SessionId(*(bytes(decode_value(session, fields[name])) for name in (b"id", b"uid")))
