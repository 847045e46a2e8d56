"""Which transactions the commands that kill sessions mean. Pure."""

from collections.abc import Callable
from typing import Final

from shardwright.sharding import session_arguments
from shardwright.sharding.meant_sessions import ALL_SESSIONS, MeantSessions
from shardwright.wire.rawbson import decode_value, index
from shardwright.wire.request import Request

KILLS: Final = frozenset({"killAllSessions", "killAllSessionsByPattern", "killSessions"})


def is_killed_by(request: Request) -> Callable[[bytes], bool]:
    """Whether a command kills a session (`session_keys.session_key`); with a session, its child sessions are killed.

    Args:
        request: one of `KILLS`, which mongod has executed.
    """
    meant = _meant_by(request)
    return lambda session: _key_of(session) in meant


def _meant_by(request: Request) -> MeantSessions:
    if request.name == "killAllSessionsByPattern":
        return session_arguments.patterns(request)
    if request.name == "killAllSessions":
        return session_arguments.users(request)
    named = session_arguments.sessions(request)
    return MeantSessions(named) if named else ALL_SESSIONS


def _key_of(session: bytes) -> bytes:
    fields = index(session)
    return b"".join(bytes(decode_value(session, fields[name])) for name in (b"id", b"uid"))
