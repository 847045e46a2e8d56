"""This shard's entries in the cluster's changelog."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from bson.objectid import ObjectId

from shardwright.shardd.context.shard_context import ShardContext
from shardwright.sharding.catalog.changelog_entry import ChangeLogEntry
from shardwright.wire.errors import CommandError
from shardwright.wire.logger import get_logger

logger = get_logger("shardd.changelog")


async def log_change(
    context: ShardContext, what: str, namespace: str, details: Mapping[str, Any] | None = None
) -> None:
    """Insert an entry into ``config.changelog``; a failure is only logged, because the change does not depend on it."""
    now = datetime.now(UTC).replace(tzinfo=None)
    entry = ChangeLogEntry(
        id=ChangeLogEntry.make_id(context.options.address, now, ObjectId()),
        server=context.options.address,
        shard=context.require_identity().shard_name,
        client_address="",
        time=now,
        what=what,
        namespace=namespace,
        details=details or {},
    )
    logger.info("Writing to the changelog", what=what, namespace=namespace)
    try:
        catalog = await context.catalog()
        await catalog.command({"insert": "changelog", "documents": [entry.to_document()]}, db="config")
    except CommandError as error:
        logger.warning("Could not write to the changelog", what=what, namespace=namespace, error=str(error))
