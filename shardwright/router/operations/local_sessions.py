"""``$listLocalSessions``: the sessions used on this router process since their last refresh."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

import bson

from shardwright.router.operations.operation import Operation
from shardwright.router.operations.own_documents import aggregate_own_documents
from shardwright.router.operations.scatter import forwarded, send_to_one
from shardwright.router.reads.pipeline import Pipeline
from shardwright.router.replies.own_reply import Reply
from shardwright.sharding.session_cache import SessionCache, digest_of_user
from shardwright.wire.rawbson import decode_document
from shardwright.wire.stages import with_stages

LIST_LOCAL_SESSIONS: Final = "$listLocalSessions"

_NOTHING: Final = bson.encode({"$match": {"$expr": False}})


async def aggregate_local_sessions(operation: Operation, pipeline: Pipeline, shard: str) -> Reply:
    """Have a shard run the stages that come after on the sessions.

    Raises:
        CommandError: the stage has wrong arguments; or the shard failed.
    """
    stage = pipeline.stages[0].raw
    await _check(operation, stage, shard)
    sessions = _listed(operation.context.sessions, decode_document(stage)[LIST_LOCAL_SESSIONS])
    return await aggregate_own_documents(operation, sessions, pipeline, shard)


async def _check(operation: Operation, stage: bytes, shard: str) -> None:
    """Have the shard's mongod parse the stage.

    Raises:
        CommandError: it refuses the stage.
    """
    frame = forwarded(operation, b"", with_stages(operation.request.body, (stage, _NOTHING)))
    (await send_to_one(operation, shard, frame, may_repeat=True)).raise_for_error()


def _listed(cache: SessionCache, specification: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The documents of the sessions, of certain users if the stage names some."""
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
