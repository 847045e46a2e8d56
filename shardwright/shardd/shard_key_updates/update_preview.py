"""Finding out what an update would do, in a transaction on the local mongod that is never committed."""

import math
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import trio

from shardwright.daemon.backoff import Backoff
from shardwright.daemon.sidecar.mongod import LocalMongod
from shardwright.shardd.shard_key_updates.exact_documents import only_with_id
from shardwright.shardd.shard_key_updates.preview import Preview
from shardwright.shardd.shard_key_updates.preview_transactions import PreviewTransaction, PreviewTransactions
from shardwright.sharding.namespace import Namespace
from shardwright.wire.error_codes import Category, ErrorCode, has_category
from shardwright.wire.errors import TRANSIENT_TRANSACTION_ERROR, CommandError
from shardwright.wire.rawbson import (
    EMPTY_DOCUMENT,
    OBJECT,
    Span,
    array_documents,
    find,
    index,
    raw_document,
    wrap_value,
)

_CONFLICT_SECONDS_MAX: Final = 120.0
"""How long a transaction lives at most: ``transactionLifetimeLimitSeconds``, and until mongod looks for those that have
lived so long."""

_ABANDONED_SECONDS: Final = 1.0
"""After how long a conflict is taken for one with a former attempt with which nobody goes on."""

CAUSED_BY: Final = "Plan executor error during findAndModify :: caused by :: "
"""The prefix that mongod gives to the errors of a ``findAndModify`` but not to those of an ``update``."""


class UpdatePreviews:
    """Previews on one mongod.

    Attributes:
        transactions: the transactions in which updates are previewed.
    """

    def __init__(self, mongod: LocalMongod) -> None:
        self.transactions = PreviewTransactions(mongod)

    async def preview(
        self,
        namespace: Namespace,
        modification: Mapping[str, Any],
        *,
        seconds_max: float = math.inf,
        end_former_attempts: Callable[[], Awaitable[None]] | None = None,
    ) -> Preview:
        """Find out what a ``findAndModify`` would do, waiting for other transactions that conflict with it.

        Args:
            namespace: the collection.
            modification: its arguments ``query``, ``update``, ``upsert``, ``sort`` and so on.
            seconds_max: the client's time limit.
            end_former_attempts: ends transactions in which the same write was executed before, if there are any.

        Raises:
            CommandError: it would fail; MaxTimeMSExpired; WriteConflict and the like, other transactions conflicted
                with it for longer than any of them can live.
        """
        began, backoff = trio.current_time(), Backoff(first_seconds=0.01, seconds_max=0.1)
        while True:
            try:
                async with self.transactions.begin() as transaction:
                    return await _preview(transaction, namespace, modification)
            except CommandError as error:
                is_conflict = TRANSIENT_TRANSACTION_ERROR in error.labels and not _concerns_role(error)
                # The client does not know about the transaction.
                error.labels = tuple(label for label in error.labels if label != TRANSIENT_TRANSACTION_ERROR)
                waited = trio.current_time() - began
                if not is_conflict or waited > _CONFLICT_SECONDS_MAX:
                    raise
                if waited > seconds_max:
                    raise CommandError(ErrorCode.MaxTimeMSExpired, "operation exceeded time limit") from error
                if end_former_attempts is not None and waited > _ABANDONED_SECONDS:
                    await end_former_attempts()
                    end_former_attempts = None
            # Usually another writer has just changed the document, and its transaction is over in a moment.
            await backoff.pause()


async def _preview(transaction: PreviewTransaction, namespace: Namespace, modification: Mapping[str, Any]) -> Preview:
    reply = await transaction.run(namespace.db, {"findAndModify": namespace.collection, **modification, "new": False})
    fields = index(reply)
    value = fields.get(b"value")
    before = reply[value[2] : value[3]] if value is not None and value[0] == OBJECT else None
    identity = before if before is not None else _upserted(reply, fields)
    if identity is None:
        return Preview(None, None)
    query = raw_document(only_with_id(EMPTY_DOCUMENT, identity, is_collated=True))
    found = await transaction.run(namespace.db, {"find": namespace.collection, "filter": query})
    cursor = index(found, index(found)[b"cursor"][2])
    return Preview(before, array_documents(found, cursor[b"firstBatch"])[0])


def _concerns_role(error: CommandError) -> bool:
    """Whether mongod refuses all writes at present, so that waiting for other transactions does not help."""
    return any(has_category(error.code, each) for each in (Category.NOT_PRIMARY, Category.SHUTDOWN))


def _upserted(reply: bytes, fields: Mapping[bytes, Span]) -> bytes | None:
    """``{_id}`` of the document that a ``findAndModify`` inserted, if any."""
    upserted = find(reply, b"upserted", fields[b"lastErrorObject"][2])
    return None if upserted is None else wrap_value(upserted[0], reply[upserted[2] : upserted[3]], b"_id")
