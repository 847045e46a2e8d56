"""Running a command in its transaction: finding or starting it, errors that abort it, and the recovery token."""

from dataclasses import replace

import trio

from shardwright.router.cursors.cursor import API_PARAMETERS
from shardwright.router.cursors.open_cursor import CursorOwner
from shardwright.router.operations.checked_pipeline import check_read_strictly, check_write_strictly
from shardwright.router.operations.operation import Operation
from shardwright.router.operations.router_command import CommandHandler, RouterCommand
from shardwright.router.reads.raw_elements import raw_elements
from shardwright.router.replies.reply_builder import Reply
from shardwright.router.replies.reply_tail import with_recovery_token
from shardwright.router.transactions.commit_and_abort import abort_implicitly, abort_uncommitted
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
from shardwright.wire.error_codes import ErrorCode, code_name
from shardwright.wire.errors import CommandError
from shardwright.wire.transport.request_loop import in_own_task, may_run_in_reactor


def in_transaction(entry: RouterCommand, handler: CommandHandler) -> CommandHandler:
    """Wrap a command's handler for requests with ``autocommit: false``."""

    @may_run_in_reactor
    async def handle(operation: Operation) -> Reply:
        return await _run(operation, entry, handler)

    return handle


@may_run_in_reactor
async def _run(operation: Operation, entry: RouterCommand, handler: CommandHandler) -> Reply:
    """Run a command after any other command of its session has ended."""
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
                    _end_cursors(operation, transaction)
        transaction = _continued(session, fields)
        _check_api_parameters(operation, transaction)
        if transaction is None:
            transaction = await _begun(operation, session, fields)
        return await _run_statement(operation, transaction, handler)
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
        with statistics.statement(transaction):
            reply, failure = with_recovery_token(await handler(operation), transaction.recovery_shard)
    except CommandError as error:
        await in_own_task()
        await _abort(operation, transaction, error.code_name)
        raise
    except (Exception, trio.Cancelled):
        await in_own_task()
        await _abort(operation, transaction, code_name(ErrorCode.Interrupted))
        raise
    if failure:
        await in_own_task()
        await _abort(operation, transaction, code_name(failure))
    elif transaction.phase is Phase.ABORTED:
        await in_own_task()
        await _abort(operation, transaction, code_name(ErrorCode.Interrupted))
        raise CommandError(ErrorCode.Interrupted, "operation was interrupted")
    return reply


async def _abort(operation: Operation, transaction: RouterTransaction, cause: str) -> None:
    """Abort a transaction after an error, or after it was killed during a statement.

    A killed transaction is aborted again: a shard may have received the statement only after the first abort.
    """
    _end_cursors(operation, transaction)
    if transaction.may_be_aborted:
        operation.context.transactions.statistics.aborts[cause] += 1
        await abort_implicitly(operation.context.sender, transaction)
    else:
        await abort_uncommitted(operation.context.sender, transaction)


def _end_cursors(operation: Operation, transaction: RouterTransaction) -> None:
    cursors = operation.context.cursors
    if not cursors.has_any_in_transactions:
        return
    owner = CursorOwner.of(operation.request, operation.user)
    if owner.transaction != transaction.number:  # a newer one of the session has ended it
        owner = replace(owner, transaction=transaction.number)
    cursors.end_transaction(owner)


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
        await _abort(operation, previous, code_name(ErrorCode.TransactionTooOld))
    return session.transaction
