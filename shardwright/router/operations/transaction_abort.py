"""Aborting the transaction of an operation after an error."""

from dataclasses import replace

from shardwright.router.cursors.open_cursor import CursorOwner
from shardwright.router.operations.operation import Operation
from shardwright.router.transactions.commit_and_abort import abort_implicitly, abort_uncommitted
from shardwright.router.transactions.router_transaction import RouterTransaction


async def abort_after_error(operation: Operation, transaction: RouterTransaction, cause: str) -> None:
    """Abort a transaction after an error, or after it was killed during a statement.

    A killed transaction is aborted again: a shard may have received the statement only after the first abort.
    """
    end_cursors(operation, transaction)
    if transaction.may_be_aborted:
        operation.context.transactions.statistics.aborts[cause] += 1
        await abort_implicitly(operation.context.sender, transaction)
    else:
        await abort_uncommitted(operation.context.sender, transaction)


def end_cursors(operation: Operation, transaction: RouterTransaction) -> None:
    """End the cursors of a transaction that has ended."""
    cursors = operation.context.cursors
    if not cursors.has_any_in_transactions:
        return
    owner = CursorOwner.of(operation.request, operation.user)
    if owner.transaction != transaction.number:  # a newer one of the session has ended it
        owner = replace(owner, transaction=transaction.number)
    cursors.end_transaction(owner)
