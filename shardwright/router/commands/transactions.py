"""Commands in transactions: running each in its transaction, ``commitTransaction`` and ``abortTransaction``.

A command finds or starts its transaction, and an error aborts it. Replies carry the recovery token.
"""

from typing import Final

import trio

from shardwright.router.operations.checked_pipeline import check_read_strictly, check_write_strictly
from shardwright.router.operations.operation import CommandHandler, Operation, RouterCommand
from shardwright.router.operations.transaction_abort import abort_after_error, end_cursors
from shardwright.router.replies.reply_builder import Reply, token_element, token_of, with_recovery_token
from shardwright.router.replies.shard_reply import ShardReply
from shardwright.router.transactions.commit_and_abort import (
    abort_explicitly,
    commit,
    recover,
)
from shardwright.router.transactions.router_transaction import Phase, RouterTransaction, TransactionFields
from shardwright.router.transactions.transaction_rules import (
    ENDING,
    aborted_transaction,
    check_allowed,
    committed_transaction,
    mismatched_api_parameters,
    restarted_transaction,
    too_old_transaction,
    unknown_transaction,
)
from shardwright.router.transactions.transaction_table import ClientDescription, RouterSession
from shardwright.wire.arguments import Arguments
from shardwright.wire.error_codes import Category, ErrorCode, code_name, has_category
from shardwright.wire.errors import RETRYABLE_WRITE_ERROR, CommandError
from shardwright.wire.request import raw_elements
from shardwright.wire.request_validation import API_PARAMETERS
from shardwright.wire.transport.reactor import in_own_task, may_run_in_reactor

_FOR_SHARDS: Final = (b"writeConcern", b"maxTimeMS", b"comment")
_RECOVERY_TOKEN: Final = b"recoveryToken"
_RECOVERY_SHARD: Final = b"recoveryShardId"
_NO_TOKEN: Final = 50940


def in_transaction(entry: RouterCommand, handler: CommandHandler) -> CommandHandler:
    """Wrap a command's handler for requests with ``autocommit: false``."""

    @may_run_in_reactor
    async def handle(operation: Operation) -> Reply:
        return await _run_in_transaction(operation, entry, handler)

    return handle


@may_run_in_reactor
async def _run_in_transaction(operation: Operation, entry: RouterCommand, handler: CommandHandler) -> Reply:
    """Run a command after any other command of its session has ended."""
    if operation.begun_session is not None:
        return await _run_begun(operation, operation.begun_session, handler)
    check_allowed(entry.name, operation.request)
    if operation.request.get(b"apiStrict"):
        check_write_strictly(operation.request)
    fields = TransactionFields.of(operation.request)
    session = await operation.context.transactions.check_out(fields.session)
    try:
        if entry.name in ENDING:
            operation.transaction = transaction = _to_be_ended(session, fields)
            _check_api_parameters(operation, transaction)
            try:
                return await handler(operation)
            finally:
                if transaction is not None and not transaction.may_be_aborted:
                    end_cursors(operation, transaction)
        transaction = _continued(session, fields)
        _check_api_parameters(operation, transaction)
        if transaction is None:
            transaction = await _begun(operation, session, fields)
        return await _run_statement(operation, transaction, handler)
    finally:
        session.check_in()


@may_run_in_reactor
async def _run_begun(operation: Operation, session: RouterSession, handler: CommandHandler) -> Reply:
    """Run the rest of a statement that a passage has begun, in the session that it has checked out."""
    operation.begun_session = None
    assert session.transaction is not None
    try:
        return await _run_statement(operation, session.transaction, handler)
    finally:
        session.check_in()


@may_run_in_reactor
async def _run_statement(operation: Operation, transaction: RouterTransaction, handler: CommandHandler) -> Reply:
    """Run a statement, and abort the transaction if it fails."""
    transaction.begin_statement()
    operation.enter(transaction)
    statistics = operation.context.transactions.statistics
    try:
        if operation.request.get(b"apiStrict"):
            await in_own_task()
            await check_read_strictly(operation)
        participants, requests = len(transaction.participants), transaction.requests
        try:
            answer = await handler(operation)
        finally:
            statistics.note_statement(transaction, participants, requests)
        reply, failure = with_recovery_token(answer, transaction.recovery_shard)
    except CommandError as error:
        await in_own_task()
        await abort_after_error(operation, transaction, error.code_name)
        raise
    except (Exception, trio.Cancelled):
        await in_own_task()
        await abort_after_error(operation, transaction, code_name(ErrorCode.Interrupted))
        raise
    if failure:
        await in_own_task()
        await abort_after_error(operation, transaction, code_name(failure))
    elif transaction.phase is Phase.ABORTED:
        await in_own_task()
        await abort_after_error(operation, transaction, code_name(ErrorCode.Interrupted))
        raise CommandError(ErrorCode.Interrupted, "operation was interrupted")
    return reply


def _to_be_ended(session: RouterSession, fields: TransactionFields) -> RouterTransaction | None:
    """Return the transaction to commit or abort, None if this router does not have it; raises TransactionTooOld."""
    known = session.transaction
    if known is None or fields.number > known.number:
        return None
    if fields.number < known.number:
        raise too_old_transaction(fields.number, known.number, fields.session)
    return known


def _continued(session: RouterSession, fields: TransactionFields) -> RouterTransaction | None:
    """Return the transaction that a statement continues; None if it starts one.

    Raises:
        CommandError: NoSuchTransaction, TransactionCommitted, TransactionTooOld; ConflictingOperationInProgress, it
            would start one a second time.
    """
    known = _to_be_ended(session, fields)
    if known is None:
        if not fields.starts:
            raise unknown_transaction(fields.number, -1 if session.transaction is None else session.transaction.number)
        return None
    if fields.starts:
        raise restarted_transaction(fields.number, fields.session)
    if known.phase is Phase.ABORTED:
        raise aborted_transaction(fields.number)
    if known.phase is not Phase.IN_PROGRESS:
        raise committed_transaction(fields.number)
    return known


def _check_api_parameters(operation: Operation, transaction: RouterTransaction | None) -> None:
    """Raise APIMismatchError unless a command repeats the first command's Stable API parameters.

    The transaction stays open after the error.
    """
    if transaction is None or transaction.phase is not Phase.IN_PROGRESS:
        return
    if not transaction.elements and operation.request.fields.keys().isdisjoint(API_PARAMETERS):
        return
    given = raw_elements(operation.request, API_PARAMETERS)
    if given != transaction.elements:
        raise mismatched_api_parameters(operation.request.name, given, transaction.elements)


@may_run_in_reactor
async def _begun(operation: Operation, session: RouterSession, fields: TransactionFields) -> RouterTransaction:
    """Start a new transaction in a session and abort its open predecessor."""
    previous = session.transaction
    session.transaction = RouterTransaction(
        fields.lsid, fields.number, fields.read_concern, raw_elements(operation.request, API_PARAMETERS)
    )
    session.transaction.times.begin_command()
    client = operation.client
    session.client = ClientDescription(client.id, client.peer, client.metadata)
    operation.context.transactions.statistics.started += 1
    if previous is not None and previous.phase is Phase.IN_PROGRESS:
        await in_own_task()
        await abort_after_error(operation, previous, code_name(ErrorCode.TransactionTooOld))
    return session.transaction


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
