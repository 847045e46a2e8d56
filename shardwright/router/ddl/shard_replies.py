"""Merging the replies of a command that several shards execute.

Most commands return each shard's reply under ``raw``, with the first error at the top level. Where MongoDB does not
merge, the reply is the first shard's, with each shard's reply added under its shard id.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from shardwright.router.replies.shard_reply import ShardReply, answer_of, without_ok
from shardwright.wire.error_codes import ErrorCode, code_name
from shardwright.wire.errors import CommandError


def merge_raw(replies: Sequence[ShardReply], connection_strings: Mapping[str, str]) -> dict[str, Any]:
    """Merge the replies of all shards under ``raw``.

    A removed shard is ignored, unless all shards are removed. The first ``writeConcernError`` is shown.

    Args:
        replies: of the shards, in the order for ``raw``.
        connection_strings: ``set/host:port,…`` of the shards by name; the keys of ``raw``.

    Raises:
        CommandError: the error of the first shard that failed, with ``raw``; among CollectionUUIDMismatch errors, the
            first that names the collection with the UUID.
    """
    raw = {connection_strings.get(reply.shard_id, reply.shard_id): answer_of(reply) for reply in replies}
    fields: dict[str, Any] = {"raw": raw} | _write_concern_error(replies)
    errors = [reply.error for reply in replies if reply.error is not None]
    counting = [error for error in errors if error.code != ErrorCode.ShardNotFound]
    if not counting and len(errors) == len(replies):
        counting = errors
    counting.sort(key=lambda error: error.extra.get("actualCollection") is None)
    for error in counting:
        details = error.extra if error.code == ErrorCode.CollectionUUIDMismatch else {}
        raise CommandError(error.code, error.message, extra={**fields, **details})
    return fields


def _write_concern_error(replies: Sequence[ShardReply]) -> dict[str, Any]:
    for reply in replies:
        error = reply.get(b"writeConcernError")
        if error is not None:
            code = error.get("code", ErrorCode.UnknownError)
            promoted = {"code": code, "codeName": code_name(code), "errmsg": f"{error['errmsg']} at {reply.shard_id}"}
            if "errInfo" in error:
                promoted["errInfo"] = error["errInfo"]
            return {"writeConcernError": promoted}
    return {}


def merge_promoted(replies: Sequence[ShardReply]) -> dict[str, Any]:
    """Merge the replies of all shards, ordered by shard id, into the first one.

    Raises:
        CommandError: the error of an unreachable shard; the error of the first shard, if it failed.
    """
    for reply in replies:
        if not reply.frame:
            assert reply.error is not None
            raise CommandError(reply.error.code, f"failed on: {reply.shard_id} :: caused by :: {reply.error.message}")
    by_shard = {reply.shard_id: answer_of(reply) for reply in replies}
    first = replies[0]
    if first.error is not None:
        raise CommandError(first.error.code, first.error.message, extra={**first.error.extra, **by_shard})
    return without_ok(by_shard[first.shard_id]) | by_shard
