"""Which transactions and writes the commands that kill sessions mean. Pure."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from shardwright.shardd.transactions.session_keys import session_key
from shardwright.sharding import session_arguments
from shardwright.sharding.meant_sessions import ALL_SESSIONS, MeantSessions
from shardwright.wire.rawbson import OBJECT, decode_document, decode_value, index, raw_document
from shardwright.wire.request import Request

KILLS: Final = frozenset({"killAllSessions", "killAllSessionsByPattern", "killSessions"})


def is_killed_by(request: Request) -> Callable[[bytes], bool]:
    """Whether a command kills a session (`session_keys.session_key`); with a session, its child sessions are killed.

    Args:
        request: one of `KILLS`, which mongod has executed.
    """
    meant = _meant_by(request)
    return lambda session: _key_of(session) in meant


class RouterSessions:
    """The writes in progress that routers have sent in sessions of their own, and the sessions of their clients.

    See `sharding.client_session`. All sessions are given by their raw ``lsid``.
    """

    def __init__(self) -> None:
        self._clients: dict[bytes, list[bytes]] = {}  # a router that repeats a write uses its session twice

    @contextmanager
    def used(self, own: bytes, client: bytes) -> Iterator[None]:
        """Note a write for as long as the block runs.

        Args:
            own: the router's session, in which the mongod executes it.
            client: the client's.
        """
        clients = self._clients.setdefault(own, [])
        clients.append(client)
        try:
            yield
        finally:
            clients.remove(client)
            if not clients:
                self._clients.pop(own, None)

    def killed_with(self, is_killed: Callable[[bytes], bool]) -> list[dict[str, Any]]:
        """The patterns for ``killAllSessionsByPattern`` that kill the writes of clients' sessions."""
        killed = [own for own, clients in self._clients.items() if any(map(is_killed, clients))]
        return [{"lsid": decode_document(own)} for own in killed]

    def is_killed(self, lsid: bytes, is_killed: Callable[[bytes], bool]) -> bool:
        """Whether a session is killed, or the client's session that it stands for."""
        return is_killed(lsid) or any(map(is_killed, self._clients.get(lsid, ())))

    def stages(self) -> list[dict[str, Any]]:
        """Stages behind ``$currentOp`` that show these writes in the sessions of their clients."""
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
        return session_arguments.patterns(request)
    if request.name == "killAllSessions":
        return session_arguments.users(request)
    named = session_arguments.sessions(request)
    return MeantSessions(named) if named else ALL_SESSIONS


def _key_of(session: bytes) -> bytes:
    fields = index(session)
    return b"".join(bytes(decode_value(session, fields[name])) for name in (b"id", b"uid"))
