"""Unfinished work of a shard that others wait for: until it ends, the shard must not be removed and then stopped.

A shard without chunks and databases may still have to deliver a decision. It may owe participants the commit of a
transaction, the recipient of its last chunk the outcome of the migration, or other shards the end of a DDL operation.
Or it waits for a decision itself: about a rename, or about a chunk that it receives. A removed shard does not get the
decision, so it would wait forever if it was added again. A shard that receives a database by movePrimary has no record
of that. The copied part would become a database of the cluster when the shard was added again.
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
    "rangeDeletions": {"pending": True},  # ranges that are being received
    _CHANGES: {},
    "localRenameParticipants": {},
    "collection_critical_sections": {},
    "localReshardingOperations.donor": {},
    "localReshardingOperations.recipient": {},
}
"""By collection in a shard's database ``config``, the query for the shard's unfinished work."""


async def unfinished_work(clients: ShardClients, shard: ShardEntry, others: Iterable[ShardEntry]) -> str | None:
    """Return the name of a collection in which a shard has recorded unfinished work; None if there is none.

    An unreachable shard counts as finished, because it may be lost for good. The others are queried too, since they may
    be moving databases to it.
    """
    to_it = {_CHANGES: {"_id.operationType": "movePrimary", "to": shard.id}}
    found = await _recorded(clients, shard, _UNFINISHED)
    for other in others:
        found = found or await _recorded(clients, other, to_it)
    return found


async def _recorded(clients: ShardClients, shard: ShardEntry, queries: Mapping[str, Mapping[str, Any]]) -> str | None:
    """Return the first collection in which a shard has a matching document; None also if it is unreachable."""
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
