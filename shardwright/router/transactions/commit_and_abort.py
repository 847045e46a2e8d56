"""Committing and aborting a transaction on its participants, and recovering an outcome from the recovery shard.

If a commit fails and its outcome is unknown, the next commit sends the same requests again. If a shard answers that the
transaction was aborted, the participants that are still open are aborted too.

``elements`` are the raw elements of a command, such as its write concern. ``sender`` is the sender outside of
transactions.
"""

from collections.abc import Iterable, Sequence
from typing import Final

import trio

from shardwright.router.replies.shard_reply import ShardReply
from shardwright.router.sending.shard_sender import ShardSender
from shardwright.router.transactions.router_transaction import (
    CommitPath,
    CommitPlan,
    Phase,
    RouterTransaction,
    session_elements,
)
from shardwright.sharding.transaction_protocol import SAYS_NOTHING
from shardwright.wire.error_codes import Category, ErrorCode, codes_of
from shardwright.wire.errors import TRANSIENT_TRANSACTION_ERROR, CommandError
from shardwright.wire.frames import next_request_id
from shardwright.wire.message import op_msg
from shardwright.wire.rawbson import encode_elements, from_elements
from shardwright.wire.transport.reactor import in_own_task, may_run_in_reactor

_COMMIT: Final = encode_elements({"commitTransaction": 1})
_ABORT: Final = encode_elements({"abortTransaction": 1})
_IN_ADMIN: Final = encode_elements({"$db": "admin"})

IMPLICITLY: Final = encode_elements({"writeConcern": {"w": 1}})
"""The write concern of implicit aborts."""


def commit_frame(elements: bytes) -> bytes:
    """Build ``commitTransaction``; ``elements`` include the session fields."""
    return _frame(_COMMIT, elements)


def abort_frame(elements: bytes) -> bytes:
    """Build ``abortTransaction``; see `commit_frame`."""
    return _frame(_ABORT, elements)


def coordinate_frame(participants: Sequence[str], elements: bytes) -> bytes:
    """Build ``coordinateCommitTransaction``: start a two-phase commit, or recover its outcome without participants."""
    listed = [{"shardId": shard} for shard in participants]
    return _frame(encode_elements({"coordinateCommitTransaction": 1, "participants": listed}), elements)


def _frame(command: bytes, elements: bytes) -> bytes:
    return op_msg(from_elements(command + elements + _IN_ADMIN), request_id=next_request_id())


_SECONDS_MAX: Final = 10.0
"""Time limit of an implicit abort. A shard that does not receive the abort aborts by itself later."""


@may_run_in_reactor
async def abort_on(
    sender: ShardSender, transaction: RouterTransaction, shards: Iterable[str], elements: bytes
) -> list[ShardReply]:
    """Send ``abortTransaction`` to participants; returns their replies in order, with errors of unreachable shards."""
    fields = transaction.own_elements + transaction.elements + elements
    frames = {shard: abort_frame(fields) for shard in shards}
    replies: dict[str, ShardReply] = {}
    await sender.send_to_all(frames, replies)
    return [replies[shard] for shard in frames]


async def abort_implicitly(sender: ShardSender, transaction: RouterTransaction) -> None:
    """Abort a transaction after an error, unless the router does not decide its outcome any more; ignores failures."""
    if transaction.may_be_aborted:
        await abort_uncommitted(sender, transaction)


async def abort_uncommitted(sender: ShardSender, transaction: RouterTransaction) -> None:
    """Abort a transaction whose commit was not requested, or has no waiter, on all participants; ignores failures.

    It may still be committed: a prepared participant refuses to abort, so no part of a commit is undone. The abort
    continues after the client's time limit, because the transaction's locks would remain.
    """
    transaction.phase = Phase.ABORTED
    with trio.move_on_after(_SECONDS_MAX, shield=True):
        await abort_on(sender, transaction, transaction.participants, IMPLICITLY)


@may_run_in_reactor
async def abort_explicitly(sender: ShardSender, transaction: RouterTransaction, elements: bytes) -> None:
    """Abort a transaction at its client's request.

    Raises:
        CommandError: NoSuchTransaction, no statement has reached a shard; or the first error of a participant.
    """
    transaction.phase = Phase.ABORTED
    if not transaction.participants:
        raise CommandError(
            ErrorCode.NoSuchTransaction, "no known command has been sent by this router for this transaction"
        )
    for reply in await abort_on(sender, transaction, transaction.participants, elements):
        if reply.error is not None:
            raise reply.error


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
"""Errors after which the outcome of the commit is unknown.

They include an unknown shard, because an earlier attempt may have reached it. Any other error means that the
transaction was aborted, by the shard itself or by the vote of the participant that reported the error.
"""

_ABORTED: Final = codes_of(Category.SNAPSHOT) | {
    ErrorCode.NoSuchTransaction,
    ErrorCode.TransactionCommitted,
    ErrorCode.WriteConflict,
}
"""Errors about the transaction itself. Others may refuse a second attempt after the first was executed."""


@may_run_in_reactor
async def commit(sender: ShardSender, transaction: RouterTransaction, elements: bytes) -> ShardReply | None:
    """Commit a transaction; returns the reply for the client, None if it has no participants."""
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
    """Recover the outcome of another router's transaction from its recovery shard; aborts it if it is open.

    Raises:
        CommandError: it was aborted; or the shard could not be reached.
    """
    reply = await sender.send(shard, coordinate_frame((), session_elements(lsid, number) + elements), may_repeat=True)
    reply.raise_for_error()
    return reply


def is_unknown(error: CommandError) -> bool:
    """Whether a commit that failed with this error may have taken effect, or may still do so."""
    return error.code in _LEAVES_OPEN or "writeConcernError" in error.extra


async def _abort_others(sender: ShardSender, transaction: RouterTransaction, error: CommandError) -> None:
    """Abort on all participants, unless the only one has answered NoSuchTransaction."""
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
    """Commit the readers, then the writer, so that its writes take effect only if all reads were of one snapshot."""
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
    """Build the error for a transaction aborted because a reader could not commit; nothing was written."""
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
