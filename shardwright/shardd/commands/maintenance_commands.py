"""Commands that check or clean up local data: orphans, consistency, sizes for the balancer."""

from collections.abc import Iterable, Mapping
from typing import Any, Final
from uuid import UUID

from bson.binary import Binary
from bson.int64 import Int64

from shardwright.shardd.commands.command import ShardComponents
from shardwright.shardd.consistency.database_check import check_database
from shardwright.shardd.consistency.local_check import ExpectedCollection, LocalCheck
from shardwright.shardd.local_mongod import local_collections
from shardwright.sharding.arguments import full_namespace
from shardwright.sharding.bson_text import document_text
from shardwright.sharding.document_fields import required, required_uuid
from shardwright.sharding.namespace import Namespace
from shardwright.wire.arguments import Arguments
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.rawbson import EMPTY_DOCUMENT, decode_document, is_string
from shardwright.wire.request import Request


async def cleanup_orphaned(shard: ShardComponents, request: Request) -> dict[str, Any]:
    """Return when all ranges of a collection that this shard gave away, or failed to receive, are deleted.

    As in MongoDB since 4.4, this only waits for the range deleter, and never returns a key at which it stopped.

    Raises:
        CommandError: OrphanedRangeCleanUpFailed, ``startingFromKey`` is not a shard key; or the deletion of a range has
            failed in this term.
    """
    namespace = str(full_namespace(request))
    start = request.raw_object(b"startingFromKey") or EMPTY_DOCUMENT
    table = await shard.context.refresher.current_table(shard.context.namespace(namespace))
    if table is None:  # not sharded
        return {}
    pattern = table.key_pattern
    if start != EMPTY_DOCUMENT and pattern.normalize(start) is None:
        raise CommandError(
            ErrorCode.OrphanedRangeCleanUpFailed,
            f"could not cleanup orphaned data, start key {document_text(start)} does not match shard key pattern "
            f"{pattern}",
        )
    await shard.range_deletions.known.wait_all_deleted(namespace)
    return {}


async def check_metadata_consistency(shard: ShardComponents, request: Request) -> dict[str, Any]:
    """Compare the catalog's entries of a database, or one collection of it, with each other and with all shards."""
    indexes = Arguments.of(request).boolean(b"checkIndexes", False)
    found = await check_database(shard.context, request.db, _collection(request), indexes=indexes)
    return {"inconsistencies": found}


async def check_metadata_consistency_participant(shard: ShardComponents, request: Request) -> dict[str, Any]:
    """Compare this shard's collections with the catalog."""
    primary_shard = Arguments.of(request).string(b"primaryShardId")
    documents: list[dict[str, Any]] = [decode_document(each) for each in request.documents(b"collections")]
    check = LocalCheck(shard.context, request.db)
    await check.run([ExpectedCollection.from_document(each) for each in documents], _collection(request), primary_shard)
    return {"inconsistencies": check.found, "indexes": check.indexes, "options": check.options}


def _collection(request: Request) -> str:
    """Return the name of the only collection to check; empty for all."""
    value = request.get(request.name.encode())
    return value if is_string(value) else ""


_RANGE_DELETIONS: Final = "rangeDeletions"


async def get_stats_for_balancing(shard: ShardComponents, request: Request) -> dict[str, Any]:
    """Report the size of collections in bytes, divided by ``scaleFactor``, without their orphans.

    A collection that does not exist here, or has another UUID, has size 0.
    """
    scale = int(request.get(b"scaleFactor", 1)) or 1
    asked = [decode_document(document) for document in request.documents(b"collections")]
    uuids = [required_uuid(each, "UUID") for each in asked]
    orphans = await _orphans(shard, uuids)
    stats = []
    for each, uuid in zip(asked, uuids, strict=True):
        namespace = Namespace.parse_collection(required(each, "ns", str))
        size = await _size(shard, namespace, uuid, orphans.get(uuid, 0))
        stats.append({"namespace": str(namespace), "collSize": Int64(size // scale)})
    return {"stats": stats}


async def _orphans(shard: ShardComponents, uuids: Iterable[UUID]) -> Mapping[UUID, int]:
    """Return the number of documents in pending range deletions, by collection."""
    pipeline = [
        {"$match": {"collectionUuid": {"$in": [Binary.from_uuid(uuid) for uuid in uuids]}}},
        {"$group": {"_id": "$collectionUuid", "orphans": {"$sum": "$numOrphanDocs"}}},
    ]
    reply = await shard.context.mongod.command(
        "config", {"aggregate": _RANGE_DELETIONS, "pipeline": pipeline, "cursor": {}}
    )
    return {required_uuid(each, "_id"): int(each["orphans"]) for each in reply["cursor"]["firstBatch"]}


async def _size(shard: ShardComponents, namespace: Namespace, uuid: UUID, orphans: int) -> int:
    local = await local_collections.describe(shard.context.mongod, namespace)
    if local is None or local.uuid != uuid:
        return 0
    try:
        stats = await shard.context.mongod.command(namespace.db, {"collStats": namespace.collection})
    except CommandError as error:
        if error.code != ErrorCode.NamespaceNotFound:  # dropped in between
            raise
        return 0
    return max(0, int(stats["size"]) - orphans * int(stats.get("avgObjSize", 0)))
