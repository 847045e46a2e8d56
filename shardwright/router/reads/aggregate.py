"""How ``aggregate`` is rewritten for the shards, and which pipelines are refused."""

from typing import Any, Final

import bson

from shardwright.router.reads.pipeline import Pipeline
from shardwright.router.reads.pipeline_merge import PER_SHARD_SOURCES
from shardwright.wire.arguments import clamp_int64
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.field_errors import unknown_field, value_too_small, wrong_type
from shardwright.wire.rawbson import (
    ARRAY,
    BOOL,
    NULL,
    OBJECT,
    append,
    array_of_documents,
    decode_value,
    element,
    encode_elements,
    index,
    without,
)
from shardwright.wire.request import Request

PIPELINE: Final = b"pipeline"

# From mongos's list of internal fields.
_INTERNAL_FIELDS: Final = {b"needsMerge": 51089, b"fromMongos": 51089, b"exchange": 51028, b"runtimeConstants": 51143}

_NOT_EXPLAINED: Final = frozenset(
    {b"explain", b"lsid", b"$readPreference", b"readConcern", b"comment", b"maxTimeMS", b"$clusterTime", b"$db"}
)
WRITING_STAGES: Final = frozenset({"$out", "$merge"})


def check_fields(request: Request) -> None:
    """Refuse fields that only routers may send to shards.

    Raises:
        CommandError: 51089, 51028, 51143.
    """
    for name, code in _INTERNAL_FIELDS.items():
        if name in request.fields:
            raise CommandError(
                code,
                f"The '{name.decode()}' option is not allowed in an aggregation that comes from a client",
            )


def batch_size(request: Request) -> int | None:
    """``cursor.batchSize``, None if it is not given.

    Raises:
        CommandError: FailedToParse without ``cursor``, TypeMismatch, 51024 for a negative number.
    """
    span = request.fields.get(b"cursor")
    if span is None:
        raise CommandError(
            ErrorCode.FailedToParse, "The 'cursor' option is required, except for aggregate with the explain argument"
        )
    if span[0] != OBJECT:
        raise CommandError(ErrorCode.TypeMismatch, "cursor field must be missing or an object")
    for name, each in index(request.body, span[2]).items():
        if name != b"batchSize":
            raise unknown_field(f"cursor.{name.decode(errors='replace')}")
        value = decode_value(request.body, each)
        if each[0] in (BOOL, NULL) or not isinstance(value, int | float):
            raise wrong_type("cursor.batchSize", each[0], "long", "int", "decimal", "double")
        if value < 0:
            raise value_too_small("batchSize", clamp_int64(value), 0)
        return clamp_int64(value)
    return None


def as_explained(request: Request) -> bytes:
    """The command ``{aggregate, explain: true}`` as it stands inside an ``explain``."""
    body = without(request.body, _NOT_EXPLAINED)
    return body if b"cursor" in request.fields else append(body, encode_elements({"cursor": {}}))


def with_stages(body: bytes, stages: tuple[bytes, ...]) -> bytes:
    """The command with another pipeline."""
    return append(without(body, (PIPELINE,)), element(PIPELINE, ARRAY, array_of_documents(list(stages))))


def with_shard_name(stages: tuple[bytes, ...], shard: str) -> tuple[bytes, ...]:
    """The stages for one shard; a source that describes the shard is followed by a stage that adds the shard's name.

    A mongod started as a shard server adds the name itself, at the same place. The ids of operations get
    the form ``shard:id`` that ``killOp`` takes.
    """
    first = next(iter(index(stages[0]))).decode(errors="replace") if stages else ""
    if first not in PER_SHARD_SOURCES:
        return stages
    added: dict[str, Any] = {"shard": {"$literal": shard}}  # a name may begin with a dollar sign
    if first == "$currentOp":
        of_shard = {"$concat": [{"$literal": f"{shard}:"}, {"$toString": "$opid"}]}
        added["opid"] = {"$ifNull": [of_shard, "$$REMOVE"]}
    return (stages[0], bson.encode({"$addFields": added}), *stages[1:])


def not_supported(pipeline: Pipeline, shards: tuple[str, ...]) -> CommandError:
    """The error for a pipeline whose results the router cannot merge."""
    return CommandError(
        ErrorCode.CommandNotSupported,
        f"This aggregation targets {len(shards)} shards ({', '.join(shards)}), and merging the results of "
        f"[{', '.join(pipeline.names)}] is not supported: a pipeline over several shards may only filter and transform "
        "single documents, then $sort, $skip and $limit, or count. A leading $match on the shard key that selects a "
        "single shard lifts the restriction",
    )
