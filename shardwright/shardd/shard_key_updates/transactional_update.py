"""Executing an update that may change a shard key as part of a client's transaction.

Nobody else can change what the transaction sees, so the update is executed first and checked afterwards. If it is not
allowed, the transaction is aborted, as it is after every failed statement. A document that then belongs to another
shard is deleted again (see `sharding.owner_changes`). If the sender does not expect that, as a router of MongoDB does
not, the document is put back as it was, and the sender is told what would have become of it.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from shardwright.shardd.shard_key_updates.key_changes import KeyChange
from shardwright.shardd.shard_key_updates.preview import Preview
from shardwright.shardd.shard_key_updates.transaction_steps import TransactionSteps
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.rawbson import OBJECT, Span, decode_value, find, index, wrap_value


@dataclass(frozen=True, slots=True)
class Executed:
    """What an update has done.

    Attributes:
        reply: the body of mongod's reply to the update.
        left: the document that has left the shard, None if none has.
    """

    reply: bytes
    left: bytes | None = None


async def update_in_transaction(
    steps: TransactionSteps,
    change: KeyChange,
    finding: Mapping[str, Any],
    execute: Callable[[bytes | None], Awaitable[bytes]],
    *,
    may_leave: bool,
) -> Executed:
    """Update or upsert one document.

    Args:
        steps: of the request.
        change: what is known of the update.
        finding: the options of a find of the document that the update concerns (sort, collation and so on).
        execute: executes the update on the given document only, as long as there is one; returns the body of the reply.
        may_leave: whether the sender inserts a document that then belongs to another shard there.

    Raises:
        CommandError: WouldChangeOwningShard, the document would leave and may not, and nothing has changed; the update
            is not allowed, so that the transaction has to be aborted; the query is wrong.
    """
    before = await steps.find_one(change.query, finding)
    reply = await execute(before)
    fields = index(reply)
    if not decode_value(reply, fields[b"ok"]) or fields.keys() & {b"writeErrors", b"retriedStmtIds", b"retriedStmtId"}:
        return Executed(reply)
    identity = before if before is not None else _upserted(reply, fields)
    after = None if identity is None else await steps.find_same(identity)
    try:
        change.check(Preview(before, after))
    except CommandError as error:
        if error.code != ErrorCode.WouldChangeOwningShard or after is None:
            raise
        await steps.delete(after)
        if may_leave:
            return Executed(reply, after)
        if before is not None:
            await steps.restore(before)
        raise
    return Executed(reply)


def _upserted(reply: bytes, fields: Mapping[bytes, Span]) -> bytes | None:
    """A document with the ``_id`` that an update or a findAndModify has inserted, if any."""
    outcome, upserted = fields.get(b"lastErrorObject"), fields.get(b"upserted")
    if upserted is not None:
        first = find(reply, b"0", upserted[2])
        return None if first is None or first[0] != OBJECT else reply[first[2] : first[3]]
    span = None if outcome is None else find(reply, b"upserted", outcome[2])
    return None if span is None else wrap_value(span[0], reply[span[2] : span[3]], b"_id")
