"""Aborting a transaction on its participants."""

from collections.abc import Iterable
from typing import Final

import trio

from shardwright.router.replies.shard_reply import ShardReply
from shardwright.router.sending.shard_sender import ShardSender
from shardwright.router.transactions.ending_commands import IMPLICITLY, abort_frame
from shardwright.router.transactions.router_transaction import Phase, RouterTransaction
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.transport.request_loop import may_run_in_reactor

_SECONDS_MAX: Final = 10.0
"""How long an abort that nobody has asked for may take. A shard that does not hear of it aborts by itself later."""


@may_run_in_reactor
async def abort_on(
    sender: ShardSender, transaction: RouterTransaction, shards: Iterable[str], elements: bytes
) -> list[ShardReply]:
    """Send ``abortTransaction`` to participants; the replies in their order, a failed one from a shard out of reach.

    Args:
        sender: the plain one.
        transaction: the transaction.
        shards: the participants.
        elements: the write concern and others.
    """
    fields = transaction.own_elements + transaction.elements + elements
    frames = {shard: abort_frame(fields) for shard in shards}
    replies: dict[str, ShardReply] = {}
    await sender.send_to_all(frames, replies)
    return [replies[shard] for shard in frames]


async def abort_implicitly(sender: ShardSender, transaction: RouterTransaction) -> None:
    """Abort a transaction after an error, unless it is no longer for the router to decide; failures do not matter."""
    if transaction.may_be_aborted:
        await abort_uncommitted(sender, transaction)


async def abort_uncommitted(sender: ShardSender, transaction: RouterTransaction) -> None:
    """Abort on all participants a transaction whose commit nobody has asked for, or nobody waits for; failures do not
    matter.

    It may be committed in spite of that: a participant that a coordinator has had prepare refuses to abort. But no part
    of a commit is undone. It goes on if the client's time limit ends meanwhile: its locks would stay, and nobody would
    look for them.
    """
    transaction.phase = Phase.ABORTED
    with trio.move_on_after(_SECONDS_MAX, shield=True):
        await abort_on(sender, transaction, transaction.participants, IMPLICITLY)


@may_run_in_reactor
async def abort_explicitly(sender: ShardSender, transaction: RouterTransaction, elements: bytes) -> None:
    """Abort a transaction as its client asks.

    Args:
        sender: the plain one.
        transaction: the transaction.
        elements: the write concern and others.

    Raises:
        CommandError: NoSuchTransaction, no statement has reached a shard; or the first participant's that failed.
    """
    transaction.phase = Phase.ABORTED
    if not transaction.participants:
        raise CommandError(
            ErrorCode.NoSuchTransaction, "no known command has been sent by this router for this transaction"
        )
    for reply in await abort_on(sender, transaction, transaction.participants, elements):
        if reply.error is not None:
            raise reply.error
