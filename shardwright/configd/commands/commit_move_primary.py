"""``_configsvrCommitMovePrimary``: make another shard the primary shard of a database."""

from typing import Any

from shardwright.configd.catalog.transactions import Transaction
from shardwright.configd.commands.command_registry import config_command
from shardwright.configd.commands.operation import Operation
from shardwright.configd.primary.locks import REMOVING_SHARDS
from shardwright.sharding.catalog.database_entry import DatabaseEntry
from shardwright.sharding.catalog.shard_entry import ShardEntry
from shardwright.sharding.versions import DatabaseVersion
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.logger import get_logger

logger = get_logger("configd.commit_move_primary")


@config_command("_configsvrCommitMovePrimary")
async def commit_move_primary(operation: Operation) -> dict[str, Any]:
    """Change the database's entry, unless that has been done: only its primary shard sends this.

    Raises:
        CommandError: NamespaceNotFound, there is no such database; ConflictingOperationInProgress, it is another one
            than expected; ShardNotFound, there is no such shard, or it is draining.
    """
    name = operation.subject
    expected = DatabaseVersion.from_value(operation.arguments.required_value(b"expectedDatabaseVersion"))
    to = operation.arguments.string(b"to")
    moved_at = operation.arguments.timestamp(b"movedAt") if operation.arguments.has(b"movedAt") else None

    async def work(transaction: Transaction) -> None:
        document = await transaction.find_one("databases", {"_id": name})
        if document is None:
            raise CommandError(ErrorCode.NamespaceNotFound, f"database {name} not found")
        entry = DatabaseEntry.from_document(document)
        if entry.version.timestamp == expected.timestamp and expected.is_older_than(entry.version):
            return
        if not entry.version.matches(expected):
            raise CommandError(
                ErrorCode.ConflictingOperationInProgress,
                f"the version of the database {name} is {entry.version}, not {expected}",
            )
        await _check_shard(transaction, to)
        transaction.put("databases", [{**document, **entry.moved_to(to, moved_at).to_document()}])

    # Not while a shard is being removed, which is allowed only as long as it has no databases.
    async with operation.primary.locks.hold(REMOVING_SHARDS, f"db:{name.lower()}"):
        await operation.primary.catalog.transaction(work)
    logger.info("A database has another primary shard", db=name, shard=to)
    return {}


async def _check_shard(transaction: Transaction, shard_id: str) -> None:
    document = await transaction.find_one("shards", {"_id": shard_id})
    if document is None:
        raise CommandError(ErrorCode.ShardNotFound, f"Shard {shard_id} not found")
    if ShardEntry.from_document(document).is_draining:
        raise CommandError(ErrorCode.ShardNotFound, f"Shard {shard_id} is currently draining")
