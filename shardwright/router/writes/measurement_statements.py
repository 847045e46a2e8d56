"""Where the statements of a batch on a sharded time-series collection go.

The rules, and the words of the errors, are those of MongoDB 6.0, with one exception: MongoDB's shards refuse an update
that changes a shard key, and this refuses one that may, since all updates here are of many documents.
"""

from typing import Final

from shardwright.router.writes.statements import DeleteStatement, UpdateStatement, UpdateStyle
from shardwright.sharding.routing_table import RoutingTable
from shardwright.sharding.shard_key import ShardKeyPattern
from shardwright.sharding.targeting.bucket_filters import bucket_filter
from shardwright.sharding.targeting.exact_key import exact_shard_key
from shardwright.sharding.time_series import TimeSeriesFields
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.rawbson import OBJECT, STRING, spans

FULL_KEY_MISSING: Final = 31025
"""MongoDB's number for an update of the shard key that does not name the present one."""


def shard_of_measurement(measurement: bytes, fields: TimeSeriesFields, table: RoutingTable) -> str:
    """The shard of the bucket for a measurement.

    Raises:
        CommandError: 5743702, it has no time; ShardKeyNotFound, the metadata has an array on a path of the key.
    """
    return table.shard_for_key(table.key_pattern.key_bytes_of_document(fields.bucket_of(measurement)))


def filter_of_update(update: UpdateStatement, fields: TimeSeriesFields, pattern: ShardKeyPattern) -> bytes:
    """The filter of the buckets that an update may change.

    Raises:
        CommandError: InvalidOptions, it is not one of many documents, or an upsert; 31025 or InvalidOptions, it may
            change the shard key.
    """
    if not update.is_multi:
        raise CommandError(
            ErrorCode.InvalidOptions, "A {multi:false} update on a sharded timeseries collection is disallowed."
        )
    if update.is_upsert:
        raise CommandError(
            ErrorCode.InvalidOptions, "An {upsert:true} update on a sharded timeseries collection is disallowed."
        )
    filter_document = bucket_filter(update.filter, fields)
    if update.style is UpdateStyle.OPERATORS and _touches_key(update.replacement, fields, pattern):
        if exact_shard_key(filter_document, pattern) is None:
            raise CommandError(
                FULL_KEY_MISSING, "Shard key update is not allowed without specifying the full shard key in the query"
            )
        raise CommandError(
            ErrorCode.InvalidOptions, "Multi-update operations are not allowed when updating the shard key field."
        )
    return filter_document


def filter_of_delete(delete: DeleteStatement, fields: TimeSeriesFields) -> bytes:
    """The filter of the buckets that a delete may remove.

    Raises:
        CommandError: IllegalOperation, it is one of a single document.
    """
    if delete.is_single:
        raise CommandError(ErrorCode.IllegalOperation, "Cannot perform a non-multi delete on a time-series collection")
    return bucket_filter(delete.filter, fields)


def _touches_key(operators: bytes, fields: TimeSeriesFields, pattern: ShardKeyPattern) -> bool:
    """Whether operators name a field of the shard key, or one above or below it."""
    for operator, operand in spans(operators):
        if operand[0] != OBJECT:
            continue
        for path, (kind, _, value, end) in spans(operators, operand[2]):
            named = [path]
            if operator == b"$rename" and kind == STRING:
                named.append(operators[value + 4 : end - 1])
            if any(_is_on_key(each, fields, pattern) for each in named):
                return True
    return False


def _is_on_key(path: bytes, fields: TimeSeriesFields, pattern: ShardKeyPattern) -> bool:
    renamed = fields.renamed(path.decode(errors="replace"))
    if renamed is None:
        return False
    parts = renamed.encode().split(b".")
    # A positional part ($, $[], $[id]) may stand for any name.
    return any(
        all(left == right or left.startswith(b"$") for left, right in zip(parts, field.path, strict=False))
        for field in pattern.fields
    )
