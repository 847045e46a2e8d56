"""Pipelines over documents of the router itself: its sessions, or the data distribution that it computes."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import bson
import trio
from bson.int64 import Int64

from shardwright.router.exec.shard import ShardStage
from shardwright.router.operations.cursor_opening import OpenedRead, answer_cursor
from shardwright.router.operations.operation import Operation
from shardwright.router.operations.scatter import forwarded, send_to_one
from shardwright.router.reads.aggregations import batch_size
from shardwright.router.reads.result_merger import FIRST_BATCH_DOCUMENTS
from shardwright.router.replies.reply_builder import Reply
from shardwright.sharding.logical_sessions import SessionCache, digest_of_user
from shardwright.sharding.namespace import Namespace
from shardwright.sharding.pipelines.pipeline import Pipeline
from shardwright.wire.errors import CommandError
from shardwright.wire.rawbson import decode_document
from shardwright.wire.request import with_stages
from shardwright.wire.transport.cursor import DecodedCursor


async def aggregate_own_documents(
    operation: Operation, documents: list[dict[str, Any]], pipeline: Pipeline, shard: str
) -> OpenedRead:
    """Run the stages after the source of a pipeline on a shard, with documents of this router as input.

    Args:
        documents: the results of the source, which is the first stage.

    Raises:
        CommandError: the shard failed; the documents are too large for one message.
    """
    source = bson.encode({"$documents": {"$literal": documents}})
    stages = (source, *(stage.raw for stage in pipeline.stages[1:]))
    frame = forwarded(operation, b"", with_stages(operation.request.body, stages))
    reply = await send_to_one(operation, shard, frame, may_repeat=True)
    namespace = str(Namespace.collectionless_aggregate(operation.request.db))
    return OpenedRead(operation, ShardStage(operation.sender, reply), namespace)


async def answer_with_own_documents(operation: Operation, documents: list[dict[str, Any]], pipeline: Pipeline) -> Reply:
    """Reply to a pipeline whose source, the first stage, has these documents.

    Without further stages no shard is involved, so that a router shows its state even while all shards are down.

    Raises:
        CommandError: the shard that evaluates further stages failed.
    """
    size = batch_size(operation.request)
    if len(pipeline.stages) == 1 and len(documents) <= (FIRST_BATCH_DOCUMENTS if size is None else size):
        namespace = str(Namespace.collectionless_aggregate("admin"))
        return {"cursor": {"firstBatch": documents, "id": Int64(0), "ns": namespace}}
    shard = await operation.context.shards.any_id()
    return await answer_cursor(await aggregate_own_documents(operation, documents, pipeline, shard))


LIST_LOCAL_SESSIONS: Final = "$listLocalSessions"

_NOTHING: Final = bson.encode({"$match": {"$expr": False}})


async def aggregate_local_sessions(operation: Operation, pipeline: Pipeline, shard: str) -> OpenedRead:
    """Run the later stages on a shard, with the sessions as input.

    Raises:
        CommandError: the stage has wrong arguments; or the shard failed.
    """
    stage = pipeline.stages[0].raw
    await _check(operation, stage, shard)
    sessions = _listed(operation.context.sessions, decode_document(stage)[LIST_LOCAL_SESSIONS])
    return await aggregate_own_documents(operation, sessions, pipeline, shard)


async def _check(operation: Operation, stage: bytes, shard: str) -> None:
    """Validate the stage on the shard's mongod."""
    frame = forwarded(operation, b"", with_stages(operation.request.body, (stage, _NOTHING)))
    (await send_to_one(operation, shard, frame, may_repeat=True)).raise_for_error()


def _listed(cache: SessionCache, specification: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the documents of the sessions, limited to the users in the stage if it names any."""
    users = {digest_of_user(each["user"], each["db"]) for each in specification.get("users", ())}
    return [
        {
            "_id": session.to_document(),
            "lastUse": datetime.fromtimestamp(last_use, UTC),
            **({"user": cache.users[session]} if session in cache.users else {}),
        }
        for session, last_use in cache.sessions().items()
        if not users or session.uid in users
    ]


SHARDED_DATA_DISTRIBUTION: Final = "$shardedDataDistribution"

_NOT_EMPTY: Final = 6789100
_NOT_IN_ADMIN: Final = 6789102

_ORPHANS: Final = {
    "aggregate": "rangeDeletions",
    "pipeline": [{"$group": {"_id": "$collectionUuid", "count": {"$sum": "$numOrphanDocs"}}}],
    "cursor": {},
}

_Collections = Mapping[str, Any]
"""The UUIDs of the sharded collections by name. A shard may also have orphans of dropped ones with the same names."""

_Distribution = dict[str, list[dict[str, Any]]]


async def aggregate_sharded_data_distribution(
    operation: Operation, pipeline: Pipeline, shards: Sequence[str]
) -> OpenedRead:
    """Run the later stages on a shard, with the distribution as input.

    Args:
        pipeline: its stages, checked by `check_distribution`; the first is ``$shardedDataDistribution``.
    """
    entries = await operation.context.catalog.find("collections", {})
    collections = {found["_id"]: found["uuid"] for found in map(decode_document, entries)}
    distribution: _Distribution = {}
    failures: list[CommandError] = []

    async def add(shard: str) -> None:
        try:
            await _add_shard(operation, shard, collections, distribution)
        except CommandError as error:
            failures.append(error)

    async with trio.open_nursery() as nursery:
        for shard in shards:
            nursery.start_soon(add, shard)
    if failures:
        raise failures[0]
    documents: list[dict[str, Any]] = [
        {"ns": namespace, "shards": sorted(distribution[namespace], key=lambda each: str(each["shardName"]))}
        for namespace in sorted(distribution)
    ]
    return await aggregate_own_documents(operation, documents, pipeline, operation.context.shards.reachable_of(shards))


def check_distribution(pipeline: Pipeline, db: str) -> None:
    """Refuse an invalid ``$shardedDataDistribution`` at any position; a mongod's error would say it is for routers."""
    for stage in pipeline.stages:
        if stage.name != SHARDED_DATA_DISTRIBUTION:
            continue
        if stage.specification != {}:
            message = f"The {SHARDED_DATA_DISTRIBUTION} stage specification must be an empty object"
            raise CommandError(_NOT_EMPTY, message)
        if db != "admin":
            message = f"The {SHARDED_DATA_DISTRIBUTION} stage must be run on the admin database"
            raise CommandError(_NOT_IN_ADMIN, message)


async def _add_shard(operation: Operation, shard: str, collections: _Collections, distribution: _Distribution) -> None:
    """Add a shard's parts of these collections."""
    orphans = {each["_id"]: int(each["count"]) for each in await _read(operation, shard, "config", _ORPHANS)}
    statistics = {
        "aggregate": 1,
        "pipeline": [
            {"$_internalAllCollectionStats": {"stats": {"storageStats": {}}}},
            {"$match": {"ns": {"$in": list(collections)}}},
            {"$project": {"ns": 1, "count": "$storageStats.count", "size": "$storageStats.avgObjSize"}},
        ],
        "cursor": {},
    }
    for each in await _read(operation, shard, "admin", statistics):
        shown = _shown(shard, each, orphans.get(collections[each["ns"]], 0))
        distribution.setdefault(each["ns"], []).append(shown)


async def _read(operation: Operation, shard: str, db: str, command: Mapping[str, Any]) -> list[dict[str, Any]]:
    async def run(db: str, command: Mapping[str, Any]) -> dict[str, Any]:
        return await operation.context.sender.command(shard, db, command)

    return await DecodedCursor(run, db, command).all_documents()


def _shown(shard: str, statistics: Mapping[str, Any], orphans: int) -> dict[str, Any]:
    """Return a shard's part of a collection. Empty ones have no average size, time-series ones no numbers at all."""
    count, size = statistics.get("count"), statistics.get("size")
    owned = None if count is None else Int64(count - orphans)
    return {
        "shardName": shard,
        "numOrphanedDocs": Int64(orphans),
        "numOwnedDocuments": owned,
        "ownedSizeBytes": None if size is None or owned is None else Int64(size * owned),
        "orphanedSizeBytes": None if size is None else Int64(size * orphans),
    }
