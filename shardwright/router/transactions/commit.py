"""Committing a transaction on its participants, or finding out whether another router has committed it."""

from typing import Final

from shardwright.router.replies.shard_reply import ShardReply
from shardwright.router.sending.shard_sender import ShardSender
from shardwright.router.transactions.abort import abort_uncommitted
from shardwright.router.transactions.commit_path import CommitPath, CommitPlan
from shardwright.router.transactions.ending_commands import commit_frame, coordinate_frame
from shardwright.router.transactions.router_transaction import Phase, RouterTransaction
from shardwright.router.transactions.session_fields import session_elements
from shardwright.sharding.transient_errors import SAYS_NOTHING
from shardwright.wire.error_codes import Category, ErrorCode, codes_of
from shardwright.wire.errors import TRANSIENT_TRANSACTION_ERROR, CommandError
from shardwright.wire.transport.request_loop import in_own_task, may_run_in_reactor

_LEAVES_OPEN: Final = SAYS_NOTHING | {
    ErrorCode.AuthenticationFailed,
    ErrorCode.CommandNotFound,
    ErrorCode.InternalError,
    ErrorCode.InvalidOptions,
    ErrorCode.ShardNotFound,
    ErrorCode.TransactionTooOld,
    ErrorCode.TxnRetryCounterTooOld,
    ErrorCode.Unauthorized,
    ErrorCode.UnknownError,
}
"""Errors after which the outcome of the commit is unknown, even if the shard could not be found: an earlier attempt may
have reached it.

By any other error a shard says that the transaction was aborted: its own part, or by the vote of a participant, whose
error it is.
"""

_ABORTED: Final = codes_of(Category.SNAPSHOT) | {
    ErrorCode.NoSuchTransaction,
    ErrorCode.TransactionCommitted,
    ErrorCode.WriteConflict,
}
"""Errors that are about the transaction. Others may be refusals of a second attempt, by a shard that has executed the
first.
"""


@may_run_in_reactor
async def commit(sender: ShardSender, transaction: RouterTransaction, elements: bytes) -> ShardReply | None:
    """Commit a transaction; the reply to be passed on, None if no shard was asked.

    If it fails in a way that leaves the outcome open, the next commit sends the same again. If a shard says that the
    transaction was aborted, the participants that are still open are aborted: the one that failed may have been the
    only one that was asked.

    Args:
        sender: the plain one.
        transaction: the transaction.
        elements: the write concern, the time limit and others.

    Raises:
        CommandError: it failed.
    """
    was_left_open = transaction.phase is Phase.COMMITTING
    try:
        plan = transaction.plan_commit()
        attempt = _WAYS[plan.path]
        reply = await attempt(sender, transaction, plan, elements)
    except CommandError as error:
        if not is_unknown(error) and (not was_left_open or error.code in _ABORTED):
            await in_own_task()
            await _abort_others(sender, transaction, error)
        raise
    if reply is None or not reply.has(b"writeConcernError"):
        transaction.phase = Phase.COMMITTED
    return reply


@may_run_in_reactor
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
    return error.code in _LEAVES_OPEN or "writeConcernError" in error.extra


async def _abort_others(sender: ShardSender, transaction: RouterTransaction, error: CommandError) -> None:
    """Abort on all participants, unless the only one has just said that it has no such transaction."""
    transaction.phase = Phase.ABORTED
    if len(transaction.participants) > 1 or error.code != ErrorCode.NoSuchTransaction:
        await abort_uncommitted(sender, transaction)


@may_run_in_reactor
async def _on_no_shard(_: ShardSender, __: RouterTransaction, ___: CommitPlan, ____: bytes) -> None:
    return None


@may_run_in_reactor
async def _on_one_shard(
    sender: ShardSender, transaction: RouterTransaction, plan: CommitPlan, elements: bytes
) -> ShardReply:
    [shard] = plan.shards
    [reply] = await _commit_on(sender, transaction, (shard,), elements)
    reply.raise_for_error()
    return reply


@may_run_in_reactor
async def _read_only(
    sender: ShardSender, transaction: RouterTransaction, plan: CommitPlan, elements: bytes
) -> ShardReply:
    replies = await _commit_on(sender, transaction, plan.shards, elements)
    for reply in replies:
        reply.raise_for_error()
    return next((reply for reply in replies if reply.has(b"writeConcernError")), replies[0])


@may_run_in_reactor
async def _on_one_writer(
    sender: ShardSender, transaction: RouterTransaction, plan: CommitPlan, elements: bytes
) -> ShardReply:
    """Commit the readers, then the writer: what it has written takes effect only if all reads were of one snapshot."""
    for reply in await _commit_on(sender, transaction, plan.readers, elements):
        if reply.error is not None:
            raise _aborted_by(reply.error)
    transaction.readers_committed()
    assert transaction.commit_plan is not None
    return await _on_one_shard(sender, transaction, transaction.commit_plan, elements)


@may_run_in_reactor
async def _in_two_phases(
    sender: ShardSender, transaction: RouterTransaction, plan: CommitPlan, elements: bytes
) -> ShardReply:
    coordinator = plan.shards[0]
    fields = transaction.own_elements + transaction.elements
    reply = await sender.send(coordinator, coordinate_frame(plan.shards, fields + elements), may_repeat=True)
    reply.raise_for_error()
    return reply


@may_run_in_reactor
async def _commit_on(
    sender: ShardSender, transaction: RouterTransaction, shards: tuple[str, ...], elements: bytes
) -> list[ShardReply]:
    fields = transaction.own_elements + transaction.elements + elements
    frames = {shard: commit_frame(fields) for shard in shards}
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
