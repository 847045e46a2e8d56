"""Snapshot reads outside of transactions while transactions are prepared.

A snapshot includes the commits of transactions that were prepared before its time, so its reader waits for their
decision. mongod 6.0.5 does so in ``find`` and ``aggregate``, but not in ``getMore``. Most aggregations on several
shards open their cursors with an empty batch. So such a read waits here, before its cursor is opened. Transactions
prepared later are later than the snapshot, because the oplog has reached its time already.
"""

from collections.abc import Collection
from typing import Final

import trio

from shardwright.daemon.backoff import Backoff
from shardwright.daemon.sidecar.noop_writer import READ_CONCERN
from shardwright.shardd.context.shard_context import ShardContext
from shardwright.shardd.exchange.time_limit import seconds_allowed
from shardwright.shardd.transactions.live_transactions import prepared_transactions, still_prepared
from shardwright.shardd.transactions.transactions import Transactions
from shardwright.sharding.operation_session import AUTOCOMMIT
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.rawbson import OBJECT, STRING, decode_value, find
from shardwright.wire.request import Request

_POLL_SECONDS: Final = 0.02
"""Maximum first pause before a secondary looks again for prepared transactions; it doubles each time."""

_POLL_SECONDS_MAX: Final = 1.0
"""Maximum pause. The whole wait ends with the time limit of the read, or when its client disconnects."""


def is_snapshot_read(request: Request) -> bool:
    """Whether a request reads from a snapshot outside of transactions."""
    span = request.fields.get(READ_CONCERN)
    if span is None or span[0] != OBJECT or AUTOCOMMIT in request.fields:
        return False
    level = find(request.body, b"level", span[2])
    return level is not None and level[0] == STRING and decode_value(request.body, level) == "snapshot"


class SnapshotReads:
    """Waits of snapshot reads for prepared transactions."""

    def __init__(self, context: ShardContext, transactions: Transactions) -> None:
        self._context = context
        self._transactions = transactions

    async def wait_decided(self, request: Request, namespaces: Collection[str]) -> None:
        """Wait until the transactions that are prepared now, and have used any of some namespaces, are decided.

        Args:
            request: the read; the oplog has already been advanced to its time.

        Raises:
            CommandError: MaxTimeMSExpired; NotWritablePrimary, a step-down came in between; or mongod refuses.
            BackendError: mongod does not answer.
        """
        wait = self._on_primary if self._context.is_primary else self._on_secondary
        with trio.move_on_after(seconds_allowed(request)):
            await wait(namespaces)
            return
        raise CommandError(ErrorCode.MaxTimeMSExpired, "operation exceeded time limit")

    async def _on_primary(self, namespaces: Collection[str]) -> None:
        await self._transactions.gate.wait_open()
        states = [self._context.namespace(name) for name in namespaces]
        for transaction in self._transactions.open:
            if transaction.is_prepared and any(transaction.is_inside(state) for state in states):
                await transaction.wait_ended()

    async def _on_secondary(self, namespaces: Collection[str]) -> None:
        """Poll mongod: only it has the transactions of a secondary, and no command waits for their end."""
        mongod, backoff = self._context.mongod, Backoff(_POLL_SECONDS, _POLL_SECONDS_MAX)
        awaited = {
            (session, number)
            async for session, number, written in prepared_transactions(mongod)
            if not written.isdisjoint(namespaces)
        }
        while awaited:
            await backoff.pause()
            awaited &= await still_prepared(mongod, [session for session, _ in awaited])
