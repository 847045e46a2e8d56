"""Transactions that this shard will coordinate, if their commit is requested from it in time. Pure."""

from collections.abc import Callable

from shardwright.shardd.two_phase_commit.transaction_id import TransactionId


class UnbegunCommits:
    """For each session, the transaction whose first statement made this shard its coordinator.

    A transaction leaves the table when its commit begins, when its lifetime is over, or when the session begins a newer
    one. Without an entry no coordinator is made: the transaction may be one whose coordinator has already ended.

    Args:
        clock: returns seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._by_session: dict[bytes, tuple[int, float]] = {}

    def __len__(self) -> int:
        """Number of transactions, including some whose lifetime is over."""
        return len(self._by_session)

    def begin(self, identity: TransactionId, lifetime_seconds: float) -> bool:
        """Enter a transaction, in place of an older one of its session.

        Returns:
            Whether it is a new one, rather than one that starts again after an error of its first statement.
        """
        self._discard_expired()
        session = identity.session
        known = self._by_session.get(session)
        if known is not None and known[0] >= identity.number:
            return False
        # Entries are in the order of their deadlines, as far as the lifetime stays the same.
        self._by_session.pop(session, None)
        self._by_session[session] = identity.number, self._clock() + lifetime_seconds
        return True

    def take(self, identity: TransactionId) -> float | None:
        """Remove a transaction; returns until when it lives, None if it is not in the table."""
        self._discard_expired()
        known = self._by_session.get(identity.session)
        if known is None or known[0] != identity.number:
            return None
        del self._by_session[identity.session]
        return known[1]

    def has(self, identity: TransactionId) -> bool:
        """Whether a transaction is in the table."""
        known = self._by_session.get(identity.session)
        return known is not None and known[0] == identity.number and known[1] > self._clock()

    def clear(self) -> None:
        """Forget all."""
        self._by_session.clear()

    def _discard_expired(self) -> None:
        now = self._clock()
        while self._by_session:
            session = next(iter(self._by_session))
            if self._by_session[session][1] > now:
                return
            del self._by_session[session]
