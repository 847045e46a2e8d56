"""A shard's transactions in a term: restored at its beginning, synchronized with mongod, discarded at its end.

mongod may end a transaction without notice to this daemon. The cause may be ``transactionLifetimeLimitSeconds``,
killSessions, or an error that does not mention it. So quiet transactions are looked up from time to time.
"""

from collections.abc import Mapping
from typing import Any, Final

import trio
from bson.int64 import Int64

from shardwright.shardd.context.shard_context import ShardContext
from shardwright.shardd.metadata.recovery_gate import RecoveryGate
from shardwright.shardd.transactions.endings import TransactionEndings
from shardwright.shardd.transactions.live_transactions import (
    live_transactions,
    prepared_transactions,
    session_of_document,
    still_prepared,
)
from shardwright.shardd.transactions.open_transactions import OpenTransaction, OpenTransactions
from shardwright.shardd.transactions.session_keys import is_killed_by
from shardwright.shardd.transactions.statements import TransactionStatements
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import BackendError, CommandError
from shardwright.wire.logger import get_logger
from shardwright.wire.request import Request

logger = get_logger("shardd.transactions")

CHECK_SECONDS: Final = 0.5
"""Interval between look-ups of quiet transactions."""

QUIET_SECONDS: Final = 1.0
"""Quiet time before a transaction is looked up, unless a statement of it has failed."""


class Transactions:
    """The `TermComponent` for multi-document transactions.

    Methods that access mongod raise CommandError if it refuses, and BackendError if it does not answer.

    Attributes:
        gate: closed until the prepared transactions of former terms have been restored.
    """

    def __init__(self, context: ShardContext) -> None:
        self._context = context
        self._mongod = context.mongod
        self.open = OpenTransactions(context.mongod.global_lock)
        self.statements = TransactionStatements(self.open)
        self.endings = TransactionEndings(self.open)
        self.gate = RecoveryGate(lambda: context.is_primary)

    async def begin_term(self, term: int, nursery: trio.Nursery) -> None:
        """Restore the prepared transactions, and abort open ones that are missing from the table."""
        await self._abort_abandoned()
        async for session, number, namespaces in prepared_transactions(self._mongod):
            transaction = self.open.find(session, number) or OpenTransaction(session, number)
            transaction.has_begun = transaction.has_written = transaction.is_prepared = True
            transaction.quiet_since = trio.current_time()
            for namespace in namespaces:
                transaction.enter(self._context.namespace(namespace))
            self.open.add(transaction)
            logger.info("Restored a prepared transaction", number=number, namespaces=sorted(namespaces))
        nursery.start_soon(self._keep_in_line)
        self.gate.open()

    def end_term(self) -> None:
        """Discard all transactions; the next primary restores the prepared ones.

        mongod has aborted the others, unless it was only unreachable. Then the next term begins by aborting them.
        """
        self.gate.close()
        self.open.clear()

    def is_open(self, lsid: Mapping[str, Any], number: int) -> bool:
        """Whether a transaction is open on this shard."""
        return self.open.find(session_of_document(lsid), number) is not None

    async def note_kill(self, request: Request) -> None:
        """Remove the transactions that mongod has ended because of a command that kills sessions.

        A statement in flight may begin such a transaction only now; it is aborted afterwards.

        Args:
            request: the command (`KILLS`), which mongod has executed.

        Raises:
            CommandError: mongod refuses to list the open transactions.
        """
        is_killed = is_killed_by(request)
        killed = [each for each in self.open if not each.is_prepared and is_killed(each.session)]
        for transaction in killed:
            transaction.is_killed = transaction.quiet_since is None
        quiet = [each for each in killed if each.quiet_since is not None]
        if quiet:
            await self._look_up(quiet)

    async def _abort_abandoned(self) -> None:
        """Abort open transactions without an entry, which no critical section would wait for.

        A killed daemon has left them open, or this one, if its mongod was unreachable for a while without stepping
        down. The connections of these transactions are closed, which does not end them.
        """
        for each in await live_transactions(self._mongod):
            if each.is_prepared or self.open.find(each.session, each.number) is not None:
                continue
            logger.info("Aborting a transaction that was left open", number=each.number)
            abort = {"abortTransaction": 1, "lsid": each.lsid, "txnNumber": Int64(each.number), "autocommit": False}
            try:
                await self._mongod.command("admin", abort)
            except CommandError as error:
                if error.code != ErrorCode.NoSuchTransaction:
                    raise

    async def _keep_in_line(self) -> None:
        while True:
            await self.open.wait_any()
            await trio.sleep(CHECK_SECONDS)
            now = trio.current_time()
            quiet = [each for each in self.open if _is_to_be_looked_up(each, now)]
            if quiet:
                try:
                    await self._look_up(quiet)
                except (CommandError, BackendError) as error:
                    logger.warning("Could not look up open transactions", error=str(error))

    async def _look_up(self, quiet: list[OpenTransaction]) -> None:
        """Remove transactions that mongod has ended, and determine which of the others are prepared."""
        asked = trio.current_time()
        prepared = await still_prepared(self._mongod, [each.session for each in quiet])
        live = {(each.session, each.number) for each in await live_transactions(self._mongod)}
        for transaction in quiet:
            if transaction.quiet_since is None or transaction.quiet_since > asked:
                continue  # one of its commands has been running in between
            identity = (transaction.session, transaction.number)
            transaction.is_prepared, transaction.is_doubtful = identity in prepared, False
            if identity not in prepared and identity not in live:
                self.open.end(transaction)


def _is_to_be_looked_up(transaction: OpenTransaction, now: float) -> bool:
    since = transaction.quiet_since
    return since is not None and (transaction.is_doubtful or now - since > QUIET_SECONDS)
