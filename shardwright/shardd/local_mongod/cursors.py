"""Cursors of the local mongod that return raw documents."""

from collections.abc import Mapping
from typing import Any

from shardwright.daemon.sidecar.mongod import LocalMongod
from shardwright.shardd.local_mongod.range_scan import OWN_CURSOR_COMMENT
from shardwright.sharding.namespace import Namespace
from shardwright.wire.transport.cursor import REPLY_SECONDS_MAX, RawCursor


def find_cursor(
    mongod: LocalMongod,
    namespace: Namespace,
    arguments: Mapping[str, Any],
    *,
    options: Mapping[str, Any] | None = None,
    reply_seconds_max: float = REPLY_SECONDS_MAX,
) -> RawCursor:
    """The cursor of a ``find`` with these arguments; for `options` and `reply_seconds_max` see `Cursor`."""
    find = {"find": namespace.collection, **arguments}
    return RawCursor(mongod.pool.exchange, namespace.db, find, options=options, reply_seconds_max=reply_seconds_max)


def migration_cursor(
    mongod: LocalMongod,
    namespace: Namespace,
    arguments: Mapping[str, Any],
    *,
    options: Mapping[str, Any] | None = None,
) -> RawCursor:
    """As `find_cursor`, marked as one of a migration, so that nothing waits for it if it outlives a killed daemon."""
    return find_cursor(mongod, namespace, {"comment": OWN_CURSOR_COMMENT, **arguments}, options=options)


async def all_documents(mongod: LocalMongod, namespace: Namespace, arguments: Mapping[str, Any]) -> list[bytes]:
    """All documents that a ``find`` returns.

    Raises:
        CommandError: mongod refuses, or the cursor was killed.
        BackendError: mongod does not answer.
    """
    return await find_cursor(mongod, namespace, arguments).all_documents()
