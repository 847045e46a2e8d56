"""The multi-document transactions that are open on this shard. Pure.

A session has one transaction at a time. mongod ends the previous one when a newer number arrives, so the table has at
most one entry per session.
"""

from collections.abc import Iterator


class OpenTransaction:
    """A transaction that has begun on this shard.

    Attributes:
        session: see `session_keys.session_key`.
        number: its transaction number.
        has_written: whether one of its statements has changed something on this shard.
    """

    __slots__ = ("has_written", "number", "session")

    def __init__(self, session: bytes, number: int) -> None:
        self.session = session
        self.number = number
        self.has_written = False


class OpenTransactions:
    """The table of them."""

    def __init__(self) -> None:
        self._by_session: dict[bytes, OpenTransaction] = {}

    def __len__(self) -> int:
        """Number of open transactions."""
        return len(self._by_session)

    def __iter__(self) -> Iterator[OpenTransaction]:
        """The open transactions."""
        return iter(list(self._by_session.values()))

    def find(self, session: bytes, number: int) -> OpenTransaction | None:
        """An open transaction; None if it is not known."""
        found = self._by_session.get(session)
        return found if found is not None and found.number == number else None

    def begin(self, session: bytes, number: int) -> OpenTransaction:
        """Add a transaction whose first statement is about to run."""
        self.end_older(session, number)
        transaction = self._by_session[session] = OpenTransaction(session, number)
        return transaction

    def end_older(self, session: bytes, number: int) -> None:
        """Forget the transaction of a session that ended because a newer one began."""
        older = self._by_session.get(session)
        if older is not None and older.number < number:
            self.end(older)

    def end(self, transaction: OpenTransaction) -> None:
        """Forget a transaction that has ended."""
        if self._by_session.get(transaction.session) is transaction:
            del self._by_session[transaction.session]

    def clear(self) -> None:
        """Forget all of them, at the end of a term: mongod has aborted those that were not prepared."""
        for transaction in self:
            self.end(transaction)
