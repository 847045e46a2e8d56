"""Committing a transaction on its participants, or finding out whether another router has committed it."""

from typing import Final

from shardwright.router.replies.shard_reply import ShardReply
from shardwright.router.sending.shard_sender import ShardSender
from shardwright.router.transactions.abort import abort_on
from shardwright.router.transactions.commit_path import CommitPath, CommitPlan
from shardwright.router.transactions.ending_commands import IMPLICITLY, commit_frame, coordinate_frame
from shardwright.router.transactions.error_labels import TRANSIENT_TRANSACTION_ERROR
from shardwright.router.transactions.router_transaction import Phase, RouterTransaction
from shardwright.router.transactions.session_fields import session_elements
from shardwright.wire.error_codes import Category, ErrorCode, has_category
from shardwright.wire.errors import CommandError

_UNKNOWN: Final = (Category.RETRYABLE, Category.EXCEEDED_TIME_LIMIT, Category.WRITE_CONCERN)
"""Errors of a commit that leave open whether it has taken place, or will."""


async def commit(sender: ShardSender, transaction: RouterTransaction, elements: bytes) -> ShardReply | None:
    """Commit a transaction; the reply to be passed on, None if no shard was asked.

    If it fails in a way that leaves the outcome open, the next commit sends the same again.

    Args:
        sender: the plain one.
        transaction: the transaction.
        elements: the write concern, the time limit and others.

    Raises:
        CommandError: it failed.
    """
    plan = transaction.plan_commit()
    try:
        reply = await _WAYS[plan.path](sender, transaction, plan, elements)
    except CommandError as error:
        if not is_unknown(error):
            transaction.phase = Phase.ABORTED
        raise
    if reply is None or b"writeConcernError" not in reply.fields:
        transaction.phase = Phase.COMMITTED
    return reply


async def recover(sender: ShardSender, shard: str, lsid: bytes, number: int, elements: bytes) -> ShardReply:
    """Learn the outcome of a transaction that another router was asked to commit, aborting it if it is open.

    Args:
        sender: the plain one.
        shard: the transaction's recovery shard.
        lsid: the raw id of the session.
        number: of the transaction.
        elements: see `commit`.

    Raises:
        CommandError: it was aborted; or the shard could not be asked.
    """
    reply = await sender.send(shard, coordinate_frame((), session_elements(lsid, number) + elements), may_repeat=True)
    reply.raise_for_error()
    return reply


def is_unknown(error: CommandError) -> bool:
    """Whether a commit that failed so may have taken place, or may still."""
    return (
        error.code == ErrorCode.TransactionTooOld
        or "writeConcernError" in error.extra
        or any(has_category(error.code, category) for category in _UNKNOWN)
    )


async def _on_no_shard(_: ShardSender, __: RouterTransaction, ___: CommitPlan, ____: bytes) -> None:
    return None


async def _on_one_shard(
    sender: ShardSender, transaction: RouterTransaction, plan: CommitPlan, elements: bytes
) -> ShardReply:
    [shard] = plan.shards
    [reply] = await _commit_on(sender, transaction, (shard,), elements)
    reply.raise_for_error()
    return reply


async def _read_only(
    sender: ShardSender, transaction: RouterTransaction, plan: CommitPlan, elements: bytes
) -> ShardReply:
    replies = await _commit_on(sender, transaction, plan.shards, elements)
    for reply in replies:
        reply.raise_for_error()
    return next((reply for reply in replies if b"writeConcernError" in reply.fields), replies[0])


async def _on_one_writer(
    sender: ShardSender, transaction: RouterTransaction, plan: CommitPlan, elements: bytes
) -> ShardReply:
    """Commit the readers, then the writer: what it has written takes effect only if all reads were of one snapshot."""
    for reply in await _commit_on(sender, transaction, plan.readers, elements):
        if reply.error is not None:
            transaction.phase = Phase.ABORTED
            await abort_on(sender, transaction, plan.shards, IMPLICITLY)
            raise _aborted_by(reply.error)
    transaction.readers_committed()
    assert transaction.commit_plan is not None
    return await _on_one_shard(sender, transaction, transaction.commit_plan, elements)


async def _in_two_phases(
    sender: ShardSender, transaction: RouterTransaction, plan: CommitPlan, elements: bytes
) -> ShardReply:
    coordinator = plan.shards[0]
    fields = transaction.elements_for(coordinator) + transaction.elements
    reply = await sender.send(coordinator, coordinate_frame(plan.shards, fields + elements), may_repeat=True)
    reply.raise_for_error()
    return reply


async def _commit_on(
    sender: ShardSender, transaction: RouterTransaction, shards: tuple[str, ...], elements: bytes
) -> list[ShardReply]:
    frames = {
        shard: commit_frame(transaction.elements_for(shard) + transaction.elements + elements) for shard in shards
    }
    replies: dict[str, ShardReply] = {}
    await sender.send_to_all(frames, replies)
    return [replies[shard] for shard in shards]


def _aborted_by(error: CommandError) -> CommandError:
    """The error of a transaction that was aborted because a reader could not commit; nothing was written."""
    return CommandError(
        ErrorCode.NoSuchTransaction,
        f"Transaction was aborted :: caused by :: {error.message}",
        labels=(TRANSIENT_TRANSACTION_ERROR,),
    )


_WAYS: Final = {
    CommitPath.NO_SHARDS: _on_no_shard,
    CommitPath.ONE_SHARD: _on_one_shard,
    CommitPath.READ_ONLY: _read_only,
    CommitPath.ONE_WRITER: _on_one_writer,
    CommitPath.TWO_PHASES: _in_two_phases,
}
