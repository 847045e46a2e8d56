"""``$listLocalSessions``: the sessions in use.

The router keeps no table of sessions, but those of the shards' primaries have every session that a router has used
there, and that of this very command.
"""

from collections.abc import Iterable
from typing import Any, Final

from shardwright.router.cursors.get_more import GetMore
from shardwright.router.cursors.merged import MergedCursor
from shardwright.router.operations.cursor_opening import open_on_shards
from shardwright.router.operations.operation import Operation
from shardwright.router.operations.own_documents import aggregate_own_documents
from shardwright.router.operations.scatter import forwarded
from shardwright.router.reads.aggregate import with_stages
from shardwright.router.reads.merge import ResultMerger
from shardwright.router.reads.pipeline import Pipeline
from shardwright.router.replies.own_reply import Reply
from shardwright.sharding.namespace import Namespace
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.rawbson import decode_document

LIST_LOCAL_SESSIONS: Final = "$listLocalSessions"

_SESSIONS_MAX: Final = 1_000_000
"""As mongos's default for ``maxSessions``."""


async def aggregate_local_sessions(operation: Operation, pipeline: Pipeline, shards: tuple[str, ...]) -> Reply:
    """Collect the sessions, and let a shard run the stages that come after.

    Raises:
        CommandError: BSONObjectTooLarge, there are too many sessions for one message; or a shard failed.
    """
    sessions = _distinct(await _on_shards(operation, pipeline.stages[0].raw, shards))
    return await aggregate_own_documents(operation, sessions, pipeline, shards[0])


async def _on_shards(operation: Operation, stage: bytes, shards: tuple[str, ...]) -> list[bytes]:
    frame = forwarded(operation, b"", with_stages(operation.request.body, (stage,)))
    replies = await open_on_shards(operation, dict.fromkeys(shards, frame))
    namespace = str(Namespace.collectionless_aggregate(operation.request.db))
    cursor = MergedCursor(operation.context.sender, namespace, replies, ResultMerger(len(replies)))
    try:
        documents = await cursor.first_batch(GetMore(operation.request, operation.client, batch_size=_SESSIONS_MAX))
        if not cursor.is_exhausted:
            raise CommandError(ErrorCode.BSONObjectTooLarge, "there are too many sessions to list them")
        return documents
    finally:
        operation.context.cursors.kill_remotes(cursor.remotes)


def _distinct(documents: Iterable[bytes]) -> list[dict[str, Any]]:
    """One document for each session, with its last use on any shard."""
    newest: dict[tuple[bytes, bytes], dict[str, Any]] = {}
    for document in map(decode_document, documents):
        key = (document["_id"]["id"], document["_id"]["uid"])
        if key not in newest or newest[key]["lastUse"] < document["lastUse"]:
            newest[key] = document
    return list(newest.values())
