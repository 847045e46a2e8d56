"""The outcome of a transaction as this shard's mongod has it, for commits without a coordinator in memory.

The coordinator may have finished and be forgotten, may never have begun because its primary was replaced, or may be on
another shard. In each case the transaction on this shard decides: it has been committed or aborted, it waits for a
decision, or it can still be aborted, after which no coordinator gets its vote.
"""

from typing import Any, Final

from shardwright.daemon.backoff import Backoff
from shardwright.daemon.sidecar.mongod import LocalMongod
from shardwright.shardd.local_mongod.write_concern import MAJORITY
from shardwright.shardd.transactions.statements import BEFORE_ALL_PREPARED
from shardwright.shardd.two_phase_commit.transaction_id import TransactionId
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import TRANSIENT_TRANSACTION_ERROR, CommandError

_ABORTED: Final = "Recovering the transaction's outcome found the transaction aborted"

_PAUSE_SECONDS: Final = 0.02
"""The longest pause before mongod is asked again; it doubles each time."""

_PAUSE_SECONDS_MAX: Final = 1.0
"""The longest pause. There is no limit to the whole wait, which is for the coordinator's decision, as in MongoDB."""


async def recover_outcome(mongod: LocalMongod, identity: TransactionId) -> dict[str, Any]:
    """Wait until a transaction has an outcome on this shard, aborting it if it is not prepared; returns the reply.

    Raises:
        CommandError: NoSuchTransaction, it was aborted; TransactionTooOld, the session has a newer one; or mongod's
            error, after which the outcome is unknown.
        BackendError: mongod does not answer.
    """
    # Its end is an event in mongod, and no command waits for it without taking part in the transaction.
    backoff = Backoff(_PAUSE_SECONDS, _PAUSE_SECONDS_MAX)
    has_asked = False
    while True:
        try:
            reply = await mongod.command("admin", _probe(identity))
        except CommandError as error:
            if error.code == ErrorCode.NoSuchTransaction:
                raise _aborted(error) from error
            if error.code != ErrorCode.InvalidOptions:
                raise
        else:
            return {name: value for name, value in reply.items() if name == "writeConcernError"}
        if has_asked:
            await backoff.pause()
        has_asked = True


def _probe(identity: TransactionId) -> dict[str, Any]:
    """A command that commits nothing.

    mongod refuses the timestamp (InvalidOptions), and thereby aborts the transaction if it is not prepared; a second
    probe finds out which. A committed transaction confirms it. No other command does all of that at once, so that a
    ``prepareTransaction`` that arrives at the same moment comes either before or after it.
    """
    return {
        "commitTransaction": 1,
        **identity.to_document(),
        "autocommit": False,
        "commitTimestamp": BEFORE_ALL_PREPARED,
        "writeConcern": MAJORITY,
    }


def _aborted(error: CommandError) -> CommandError:
    """The error for the router; a primary that a majority does not confirm may not know the outcome."""
    if "writeConcernError" in error.extra:
        return CommandError(error.code, _ABORTED, extra=error.extra)
    return CommandError(error.code, _ABORTED, labels=(TRANSIENT_TRANSACTION_ERROR,))
