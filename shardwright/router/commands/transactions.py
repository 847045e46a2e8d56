"""``commitTransaction`` and ``abortTransaction``."""

from typing import Final

from shardwright.router.cursors.cursor import API_PARAMETERS
from shardwright.router.operations.operation import Operation
from shardwright.router.reads.raw_elements import raw_elements
from shardwright.router.replies.reply_builder import Reply
from shardwright.router.replies.reply_tail import token_element, token_of
from shardwright.router.replies.shard_reply import ShardReply
from shardwright.router.transactions.commit_and_abort import abort_explicitly, commit, recover
from shardwright.router.transactions.router_transaction import Phase, TransactionFields
from shardwright.router.transactions.transaction_rules import (
    aborted_transaction,
    committed_transaction,
    unknown_transaction,
)
from shardwright.wire.arguments import Arguments
from shardwright.wire.error_codes import Category, ErrorCode, has_category
from shardwright.wire.errors import RETRYABLE_WRITE_ERROR, CommandError
from shardwright.wire.transport.request_loop import may_run_in_reactor

_FOR_SHARDS: Final = (b"writeConcern", b"maxTimeMS", b"comment")
_RECOVERY_TOKEN: Final = b"recoveryToken"
_RECOVERY_SHARD: Final = b"recoveryShardId"
_NO_TOKEN: Final = 50940


@may_run_in_reactor
async def commit_transaction(operation: Operation) -> Reply:
    """Makes what a transaction has written permanent, on all shards or on none."""
    _require_transaction(operation)
    request, transaction = operation.request, operation.transaction
    recovery_shard = _recovery_shard(operation)
    elements = raw_elements(request, _FOR_SHARDS)
    sender, statistics = operation.context.sender, operation.context.transactions.statistics
    if transaction is None:
        if recovery_shard is None:
            raise CommandError(_NO_TOKEN, "Cannot recover the transaction decision without a recoveryToken")
        if not recovery_shard:
            raise CommandError(
                ErrorCode.NoSuchTransaction,
                "Recovery token is empty, meaning the transaction only performed reads and can be safely retried",
            )
        fields = TransactionFields.of(request)
        elements += raw_elements(request, API_PARAMETERS)
        with statistics.commit(None):
            reply = await recover(sender, recovery_shard, fields.lsid, fields.number, elements)
        return _answer(operation, reply, recovery_shard)
    if transaction.phase is Phase.ABORTED:
        raise aborted_transaction(transaction.number)
    operation.targeted = tuple(transaction.participants)
    with statistics.commit(transaction):
        answer = await commit(sender, transaction, elements)
    return _answer(operation, answer, transaction.recovery_shard)


@may_run_in_reactor
async def abort_transaction(operation: Operation) -> Reply:
    """Undoes what a transaction has written."""
    _require_transaction(operation)
    transaction = operation.transaction
    _recovery_shard(operation)
    if transaction is None:
        raise unknown_transaction(TransactionFields.of(operation.request).number, _active_number(operation))
    if transaction.phase is Phase.ABORTED:
        raise aborted_transaction(transaction.number)
    if transaction.phase is not Phase.IN_PROGRESS:
        raise committed_transaction(transaction.number)
    operation.targeted = tuple(transaction.participants)
    operation.context.transactions.statistics.aborts["abort"] += 1
    await abort_explicitly(operation.context.sender, transaction, raw_elements(operation.request, _FOR_SHARDS))
    return operation.raw_reply(token_element(transaction.recovery_shard))


def _require_transaction(operation: Operation) -> None:
    """Refuse a command outside of a transaction."""
    if b"autocommit" not in operation.request.fields:
        raise CommandError(ErrorCode.CommandFailed, f"{operation.request.name} must be run within a transaction")


def _recovery_shard(operation: Operation) -> str | None:
    """Return the shard in the recovery token, empty if the token has none; None without a token."""
    arguments = Arguments.of(operation.request, operation.request.name)
    token = arguments.maybe_nested(_RECOVERY_TOKEN)
    if token is None:
        return None
    token.refuse_unknown(frozenset({_RECOVERY_SHARD}))
    return token.maybe_string(_RECOVERY_SHARD) or ""


def _active_number(operation: Operation) -> int:
    session = operation.context.transactions.find(TransactionFields.of(operation.request).session)
    return -1 if session is None or session.transaction is None else session.transaction.number


def _answer(operation: Operation, reply: ShardReply | None, recovery_shard: str | None) -> Reply:
    """Return the reply to a commit, with the shard's write concern error and the label for a driver's retry."""
    if reply is None or not reply.has(b"writeConcernError"):
        # An operation time of that shard suffices for later causally consistent reads, and the shard has reached it.
        if reply is not None and len(operation.targeted) == 1:
            operation.operation_time = reply.operation_time
        return operation.raw_reply(token_element(recovery_shard))
    failure = reply.get(b"writeConcernError")
    answer: dict[str, object] = {"recoveryToken": token_of(recovery_shard), "writeConcernError": failure}
    if has_category(int(failure.get("code", 0)), Category.RETRYABLE):
        answer["errorLabels"] = [RETRYABLE_WRITE_ERROR]
    return answer
