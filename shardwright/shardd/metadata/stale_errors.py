"""The errors that report stale routing to a router, in the format of MongoDB 6.0's shards.

A read fails with the error as its reply. A write command succeeds and has the error in ``writeErrors``, with the extra
fields inline. In a transaction any command fails, and the whole transaction may be retried.
"""

from collections.abc import Mapping
from typing import Any, Final

from shardwright.sharding.versions import ChunkVersion, DatabaseVersion
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import TRANSIENT_TRANSACTION_ERROR, CommandError
from shardwright.wire.request import Request

WRITE_ITEMS: Final[Mapping[str, bytes]] = {"insert": b"documents", "update": b"updates", "delete": b"deletes"}
"""The write commands whose items fail one by one, and the argument with the items."""


class StaleError(CommandError):
    """A mismatch between the router's version and the shard's.

    Attributes:
        subject: the namespace or the database.
        may_shard_be_stale: whether the shard should refresh before it replies with the error.
    """

    def __init__(self, code: int, message: str, extra: Mapping[str, Any], *, may_shard_be_stale: bool) -> None:
        super().__init__(code, message, extra=extra)
        self.subject: str = extra["ns"] if "ns" in extra else extra["db"]
        self.may_shard_be_stale = may_shard_be_stale


def stale_config(
    namespace: str,
    received: ChunkVersion,
    wanted: ChunkVersion | None,
    shard: str,
    message: str,
    *,
    may_shard_be_stale: bool,
) -> StaleError:
    """Return StaleConfig (13388) for a collection.

    Args:
        wanted: the shard's version; None if it is unknown.
        may_shard_be_stale: see `StaleError`.
    """
    extra: dict[str, Any] = {"ns": namespace, "vReceived": received.to_document()}
    if wanted is not None:
        extra["vWanted"] = wanted.to_document()
    extra["shardId"] = shard
    return StaleError(ErrorCode.StaleConfig, message, extra, may_shard_be_stale=may_shard_be_stale)


def stale_database(
    db: str, received: DatabaseVersion, wanted: DatabaseVersion | None, *, may_shard_be_stale: bool
) -> StaleError:
    """Return StaleDbVersion (249) for a database; ``wanted`` is None if the shard's version is unknown."""
    extra: dict[str, Any] = {"db": db, "vReceived": received.to_document()}
    if wanted is None:
        message = f"No cached info for the database {db}"
    else:
        extra["vWanted"] = wanted.to_document()
        message = f"dbVersion mismatch for database {db}"
    return StaleError(ErrorCode.StaleDbVersion, message, extra, may_shard_be_stale=may_shard_be_stale)


def stale_reply(request: Request, error: StaleError, gossip: Mapping[str, Any]) -> dict[str, Any]:
    """Return the reply to a stale write outside transactions, with the error for its items.

    Args:
        gossip: the times after which the router has to read the catalog in order to see at least the shard's state.

    Raises:
        CommandError: the same error for all other requests, with the label that it needs in a transaction.
    """
    items = WRITE_ITEMS.get(request.name)
    extra = {**error.extra, **gossip}
    if b"autocommit" in request.fields:
        raise CommandError(error.code, error.message, labels=(TRANSIENT_TRANSACTION_ERROR,), extra=extra)
    if items is None:
        raise CommandError(error.code, error.message, extra=extra)
    count = len(request.documents(items))
    if request.get(b"ordered", True):
        count = min(count, 1)
    reply: dict[str, Any] = {"n": 0, "writeErrors": [write_error(index, error) for index in range(count)]}
    if request.name == "update":
        reply["nModified"] = 0
    reply["ok"] = 1.0
    reply.update(gossip)
    return reply


def write_error(index: int, error: CommandError) -> dict[str, Any]:
    """Return one item of ``writeErrors``; only the first of several equal ones has the message."""
    return {"index": index, "code": error.code, "errmsg": "" if index else error.message, **error.extra}
