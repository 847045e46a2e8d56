"""Which sessions a command means that ends some of them. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Self

from shardwright.sharding.session_cache import SessionId


@dataclass(frozen=True, slots=True)
class MeantSessions:
    """Sessions by their keys (`SessionId.key`); ``key in meant`` asks.

    Attributes:
        sessions: certain ones.
        users: all of certain users, by the digests of these.
        all_of_them: every session.
    """

    sessions: frozenset[SessionId] = frozenset()
    users: frozenset[bytes] = frozenset()
    all_of_them: bool = False

    @classmethod
    def of_users(cls, users: Iterable[bytes]) -> Self:
        """All sessions of some users, given their digests."""
        return cls(users=frozenset(users))

    def __contains__(self, key: object) -> bool:
        """Whether the session with a key is meant."""
        if self.all_of_them:
            return True
        if not isinstance(key, bytes):
            return False
        session = SessionId.of_key(key)
        return session.uid in self.users or session in self.sessions

    def patterns(self) -> list[dict[str, object]]:
        """The argument of ``killAllSessionsByPattern`` that means the same; empty for every session.

        There is none for no session at all.
        """
        if self.all_of_them:
            return []
        named = sorted(self.sessions, key=lambda session: session.key)
        of_sessions: list[dict[str, object]] = [{"lsid": session.to_document()} for session in named]
        of_users: list[dict[str, object]] = [{"uid": user} for user in sorted(self.users)]
        return of_sessions + of_users


ALL_SESSIONS: Final = MeantSessions(all_of_them=True)
