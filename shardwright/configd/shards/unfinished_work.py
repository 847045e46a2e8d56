"""What a shard has begun and others wait for: it must not be removed, and then stopped, before that is over.

A shard without chunks and databases may still have to inform the participants of a transaction about the commit, the
recipient of its last chunk about the move, or the other shards about the end of a change of a collection. Or it waits
for such a decision itself: about a rename, or the migration of a chunk that it receives. A removed shard is not
informed, so it would wait for ever if it was added again. It does not know that it receives a database; the copied part
would be a database of the cluster once the shard was added again.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from shardwright.configd.shards.shard_clients import ShardClients
from shardwright.sharding.catalog.shard_entry import ShardEntry
from shardwright.wire.error_codes import Category, ErrorCode, has_category
from shardwright.wire.errors import CommandError
from shardwright.wire.logger import get_logger

logger = get_logger("configd.unfinished_work")

_CHANGES: Final = "system.sharding_ddl_coordinators"

_UNFINISHED: Final[Mapping[str, Mapping[str, Any]]] = {
    "transaction_coordinators": {},
    "migrationCoordinators": {},
    "migrationRecipients": {},
    "rangeDeletions": {"pending": True},  # of a range that is being received
    _CHANGES: {},
    "localRenameParticipants": {},
    "collection_critical_sections": {},
    "localReshardingOperations.donor": {},
    "localReshardingOperations.recipient": {},
}
"""Where a shard records, in its database ``config``, what it has not finished, and which documents that are."""


async def unfinished_work(clients: ShardClients, shard: ShardEntry, others: Iterable[ShardEntry]) -> str | None:
    """The name of a collection in which a shard has recorded something unfinished; None if there is nothing.

    Nothing is assumed of one that cannot be reached, as it may be lost for good.

    Args:
        clients: the clients of the shards.
        shard: the shard that is to be removed.
        others: the other shards, which may be moving databases to it.

    Raises:
        CommandError: a shard refuses to tell.
    """
    to_it = {_CHANGES: {"_id.operationType": "movePrimary", "to": shard.id}}
    found = await _recorded(clients, shard, _UNFINISHED)
    for other in others:
        found = found or await _recorded(clients, other, to_it)
    return found


async def _recorded(clients: ShardClients, shard: ShardEntry, queries: Mapping[str, Mapping[str, Any]]) -> str | None:
    """The first of some collections in which a shard has a document that matches; None also if it is out of reach."""
    for collection, query in queries.items():
        find = {"find": collection, "filter": query, "limit": 1, "singleBatch": True}
        try:
            reply = await clients.command(shard, "config", find)
        except CommandError as error:
            if error.code != ErrorCode.FailedToSatisfyReadPreference and not has_category(error.code, Category.NETWORK):
                raise
            logger.warning("Cannot ask a shard what it has not finished", shard=shard.id, error=str(error))
            return None
        if reply["cursor"]["firstBatch"]:
            return collection
    return None
