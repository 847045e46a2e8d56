"""``_shardsvrGetStatsForBalancing``: how much data of some collections this shard owns."""

from collections.abc import Iterable, Mapping
from typing import Any, Final
from uuid import UUID

from bson.binary import Binary
from bson.int64 import Int64

from shardwright.shardd.commands.command_registry import command
from shardwright.shardd.commands.components import ShardComponents
from shardwright.shardd.local_mongod import local_collections
from shardwright.sharding.document_fields import required, required_uuid
from shardwright.sharding.namespace import Namespace
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.rawbson import decode_document
from shardwright.wire.request import Request

_RANGE_DELETIONS: Final = "rangeDeletions"


@command("_shardsvrGetStatsForBalancing", admin_only=True, is_interruptible=True)
async def get_stats_for_balancing(shard: ShardComponents, request: Request) -> dict[str, Any]:
    """Report the size of collections in bytes, divided by ``scaleFactor``, less that of their orphans.

    A collection that is not here, or that has another UUID, has size 0.
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
    """The numbers of documents in ranges that are to be deleted, by collection."""
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
