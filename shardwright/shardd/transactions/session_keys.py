"""Sessions and transactions of commands, and sessions that commands kill: request fields and table keys. Pure."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from bson.int64 import Int64

from shardwright.shardd.session_history.statement import NOBODY, session_of
from shardwright.sharding import logical_sessions
from shardwright.sharding.logical_sessions import ALL_SESSIONS, MeantSessions
from shardwright.sharding.transaction_protocol import COORDINATED_BY, COORDINATOR, TXN_NUMBER
from shardwright.wire.rawbson import (
    BINARY,
    OBJECT,
    Span,
    decode_document,
    decode_value,
    encode_elements,
    from_elements,
    index,
    raw_document,
)
from shardwright.wire.request import Request

_CHILD_FIELDS = (b"txnNumber", b"txnUUID")


def session_key(raw: bytes, span: Span) -> bytes | None:
    """Return the session of an ``lsid`` as the raw document that ``config.transactions`` has as ``_id``.

    An internal transaction has a child session, whose key differs from its parent's.

    Returns:
        None if it is malformed, which mongod reports.
    """
    session = session_of(raw, span)
    if session is not None:
        return session
    fields = index(raw, span[2]) if span[0] == OBJECT else {}
    identity, uid = fields.get(b"id"), fields.get(b"uid")
    if identity is None or identity[0] != BINARY:
        return None
    user = NOBODY if uid is None else raw[uid[1] : uid[3]]
    child = b"".join(raw[fields[name][1] : fields[name][3]] for name in _CHILD_FIELDS if name in fields)
    return from_elements(raw[identity[1] : identity[3]] + user + child)


def retryable_write_of(session: bytes) -> bytes | None:
    """Return the common part of the child sessions of a retryable write; None for other `session_key` values."""
    if b"txnUUID" not in session:
        return None  # nearly every session
    fields = index(session)
    if b"txnNumber" not in fields or b"txnUUID" not in fields:
        return None
    return session[4 : fields[b"txnUUID"][1]]


def retryable_write(request: Request) -> bytes | None:
    """Return the common part of a retryable write's child sessions (`retryable_write_of`); None if it has none."""
    lsid = request.fields.get(b"lsid")
    session = None if lsid is None else session_of(request.body, lsid)
    if session is None:
        return None
    return session[4:-1] + encode_elements({TXN_NUMBER.decode(): Int64(request.get(TXN_NUMBER))})


_LSID: Final = b"lsid"
_NOT_FOR_MONGOD: Final = frozenset({COORDINATED_BY, COORDINATOR, b"apiVersion", b"apiStrict", b"apiDeprecationErrors"})
"""Fields of the commit protocol, which mongod does not accept, and the parameters of the Stable API.

mongod requires of all commands of a transaction the parameters of its first one. The coordinator and this daemon do not
record them, and a restarted mongod has lost a prepared transaction's.
"""


def transaction_of(request: Request) -> tuple[bytes, int] | None:
    """Return the session (`session_key`) and number of a command; None if they are missing or malformed."""
    fields = request.fields
    number = request.get(TXN_NUMBER)
    session = session_key(request.body, fields[_LSID]) if _LSID in fields else None
    return None if session is None or not isinstance(number, Int64) else (session, number)


def session_fields(request: Request) -> dict[str, Any]:
    """Return the fields that make the daemon's own commands part of a request's transaction."""
    return {"lsid": request.get(_LSID), "txnNumber": request.get(TXN_NUMBER), "autocommit": False}


def as_for_mongod(request: Request) -> Request:
    """Return a transaction's command without the fields that mongod must not see; itself if it has none of them."""
    return request.without(_NOT_FOR_MONGOD)


KILLS: Final = frozenset({"killAllSessions", "killAllSessionsByPattern", "killSessions"})


def is_killed_by(request: Request) -> Callable[[bytes], bool]:
    """Return a test for sessions (`session_keys.session_key`) and their children that one of `KILLS` kills."""
    meant = _meant_by(request)
    return lambda session: _key_of(session) in meant


class RouterSessions:
    """Writes in progress that routers have sent in their own sessions, and the sessions of their clients.

    See `sharding.transaction_protocol`. All sessions are given by their raw ``lsid``.
    """

    def __init__(self) -> None:
        self._clients: dict[bytes, list[bytes]] = {}  # a router that repeats a write uses its session twice

    @contextmanager
    def used(self, own: bytes, client: bytes) -> Iterator[None]:
        """Record a write while the block runs; mongod executes it in the router's own session."""
        clients = self._clients.setdefault(own, [])
        clients.append(client)
        try:
            yield
        finally:
            clients.remove(client)
            if not clients:
                self._clients.pop(own, None)

    def killed_with(self, is_killed: Callable[[bytes], bool]) -> list[dict[str, Any]]:
        """Return the patterns for ``killAllSessionsByPattern`` that kill the writes of clients' sessions."""
        killed = [own for own, clients in self._clients.items() if any(map(is_killed, clients))]
        return [{"lsid": decode_document(own)} for own in killed]

    def is_killed(self, lsid: bytes, is_killed: Callable[[bytes], bool]) -> bool:
        """Whether a session is killed, or the client's session that it stands for."""
        return is_killed(lsid) or any(map(is_killed, self._clients.get(lsid, ())))

    def stages(self) -> list[dict[str, Any]]:
        """Return stages to follow ``$currentOp``, which show these writes in the sessions of their clients."""
        branches = [
            {
                "case": {"$eq": ["$lsid.id", decode_document(own)["id"]]},
                "then": {"$literal": raw_document(_with_user(clients[0]))},
            }
            for own, clients in self._clients.items()
        ]
        return [{"$set": {"lsid": {"$switch": {"branches": branches, "default": "$lsid"}}}}] if branches else []


def _with_user(lsid: bytes) -> bytes:
    return session_key(lsid, (OBJECT, 0, 0, len(lsid))) or lsid


def _meant_by(request: Request) -> MeantSessions:
    if request.name == "killAllSessionsByPattern":
        return logical_sessions.patterns(request)
    if request.name == "killAllSessions":
        return logical_sessions.users(request)
    named = logical_sessions.sessions(request)
    return MeantSessions(named) if named else ALL_SESSIONS


def _key_of(session: bytes) -> bytes:
    fields = index(session)
    return b"".join(bytes(decode_value(session, fields[name])) for name in (b"id", b"uid"))
