"""``aggregate``: its argument, its batch size, and its form inside an ``explain``."""

from typing import Final

from bson.decimal128 import Decimal128

from shardwright.sharding.pipelines.pipeline import Pipeline
from shardwright.wire.arguments import clamp_int64
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError, unknown_field, value_too_small, wrong_type
from shardwright.wire.rawbson import (
    BOOL,
    DECIMAL128,
    DOUBLE,
    INT32,
    INT64,
    NULL,
    OBJECT,
    append,
    decode_value,
    encode_elements,
    index,
    without,
)
from shardwright.wire.request import Request
from shardwright.wire.type_names import type_name


def check_collectionless(request: Request) -> None:
    """Refuse an ``aggregate`` whose argument is neither a collection's name nor 1."""
    kind = next(iter(request.fields.values()))[0]
    if kind not in (INT32, INT64, DOUBLE, DECIMAL128):
        raise CommandError(ErrorCode.TypeMismatch, f"collection name has invalid type: {type_name(kind)}")
    number = request.get(b"aggregate")
    if (number.to_decimal() if isinstance(number, Decimal128) else number) != 1:
        raise CommandError(
            ErrorCode.FailedToParse,
            "Invalid command format: the 'aggregate' field must specify a collection name or 1",
        )


def check_not_empty(request: Request, pipeline: Pipeline) -> None:
    """Refuse an ``{aggregate: 1}`` without stages.

    Raises:
        CommandError: InvalidNamespace; or from `batch_size`.
    """
    if not pipeline.stages:
        batch_size(request)  # mongod reports its errors first
        raise CommandError(ErrorCode.InvalidNamespace, "{aggregate: 1} is not valid for an empty pipeline.")


PIPELINE: Final = b"pipeline"

# From mongos's list of internal fields.
_INTERNAL_FIELDS: Final = {b"needsMerge": 51089, b"fromMongos": 51089, b"exchange": 51028, b"runtimeConstants": 51143}

_NOT_EXPLAINED: Final = frozenset(
    {b"explain", b"lsid", b"$readPreference", b"readConcern", b"comment", b"maxTimeMS", b"$clusterTime", b"$db"}
)


def check_fields(request: Request) -> None:
    """Refuse fields that only routers may send to shards, and an ``explain`` that is not a boolean.

    Raises:
        CommandError: 51089, 51028, 51143; TypeMismatch.
    """
    explain = request.fields.get(b"explain")
    if explain is not None and explain[0] != BOOL:
        raise CommandError(ErrorCode.TypeMismatch, "explain must be a boolean")
    for name, code in _INTERNAL_FIELDS.items():
        if name in request.fields:
            raise CommandError(
                code,
                f"The '{name.decode()}' option is not allowed in an aggregation that comes from a client",
            )


def batch_size(request: Request) -> int | None:
    """Return ``cursor.batchSize``, None if it is not given.

    Raises:
        CommandError: FailedToParse with neither ``cursor`` nor ``explain``, TypeMismatch, 51024 for a negative number.
    """
    span = request.fields.get(b"cursor")
    if span is None:
        if b"explain" in request.fields:
            return None
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
    """Convert ``{aggregate, explain: true}`` to the command inside an ``explain``."""
    body = without(request.body, _NOT_EXPLAINED)
    return body if b"cursor" in request.fields else append(body, encode_elements({"cursor": {}}))
