"""The range being received: what belongs to it, waiting for older orphans, and deleting what was received before."""

from typing import Final
from uuid import UUID

import trio

from shardwright.daemon.sidecar.mongod import LocalMongod
from shardwright.shardd.local_mongod.cursors import find_cursor
from shardwright.shardd.local_mongod.range_scan import ShardKeyIndex
from shardwright.shardd.local_mongod.reserved_sessions import ReservedSessions
from shardwright.shardd.migration.recipient.request import ReceiveRequest
from shardwright.shardd.range_deleter.range_deletions import RangeDeletions
from shardwright.sharding.chunks import ChunkRange
from shardwright.sharding.namespace import Namespace
from shardwright.sharding.shard_key import ShardKeyPattern
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.logger import get_logger
from shardwright.wire.rawbson import raw_document

logger = get_logger("shardd.migration.recipient")

_WAIT_PARAMETER: Final = "receiveChunkWaitForRangeDeleterTimeoutMS"
_DELETED_AT_ONCE: Final = 1_000


class RangeMembership:
    """Decides whether documents belong to a range.

    Attributes:
        projection: the fields needed for that.
    """

    def __init__(self, pattern: ShardKeyPattern, wanted: ChunkRange) -> None:
        self._key_bytes_of = pattern.key_bytes_of_document
        self._range = wanted
        # A key that is MaxKey throughout belongs to the last chunk, though it is not below its bound.
        self.projection = {"_id": 1, **{each.path[0].decode(): 1 for each in pattern.fields}}
        self._greatest = pattern.global_max_bytes() if wanted.max_key == pattern.global_max_bytes() else None

    def has(self, document: bytes) -> bool:
        """Whether a raw document, or just its shard key, belongs to the range."""
        key = self._key_bytes_of(document)
        return self._range.contains_key(key) or key == self._greatest


async def wait_range_free(
    mongod: LocalMongod, range_deletions: RangeDeletions, request: ReceiveRequest, collection_uuid: UUID
) -> None:
    """Return when no other range deletion, waiting or under way, overlaps the range.

    Raises:
        CommandError: ExceededTimeLimit, one still does after ``receiveChunkWaitForRangeDeleterTimeoutMS``, a mongod
            parameter.
        BackendError: mongod does not answer.
    """
    namespace = str(request.namespace)
    parameters = await mongod.command("admin", {"getParameter": 1, _WAIT_PARAMETER: 1})
    with trio.move_on_after(parameters[_WAIT_PARAMETER] / 1000):
        known = range_deletions.known
        await known.wait_no_overlap(
            namespace, collection_uuid, request.range, request.pattern, ignoring=request.migration_id
        )
        return
    raise CommandError(
        ErrorCode.ExceededTimeLimit,
        f"Failed to delete orphaned {namespace} range {request.range} :: caused by :: operation exceeded time limit",
    )


async def delete_received(
    mongod: LocalMongod, sessions: ReservedSessions, namespace: Namespace, pattern: ShardKeyPattern, wanted: ChunkRange
) -> int:
    """Delete all documents of a range that this shard has never owned; returns how many there were.

    Raises:
        CommandError: IndexNotFound, no index supports the shard key; or mongod refuses.
        BackendError: mongod does not answer.
    """
    index = await ShardKeyIndex.find(mongod, namespace, pattern)
    deleted = 0
    async with sessions.session() as session:
        for scan in index.scans(pattern, wanted):
            arguments, options = {**scan, "projection": {"_id": 1}}, {"batchSize": _DELETED_AT_ONCE}
            async with find_cursor(mongod, namespace, arguments, options=options) as cursor:
                async for batch in cursor:
                    statements = [{"q": raw_document(each), "limit": 1} for each in batch.documents()]
                    if statements:
                        deleted += await session.delete(namespace, statements)
    if deleted:
        logger.info("Deleted documents received by an earlier attempt", namespace=str(namespace), documents=deleted)
    return deleted
