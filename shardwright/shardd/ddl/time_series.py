"""DDL of time-series collections, which are sharded by their buckets."""

from collections.abc import Mapping
from typing import Any, Final

from shardwright.shardd.context.shard_context import ShardContext
from shardwright.shardd.local_mongod import local_collections
from shardwright.sharding.bson_text import document_text
from shardwright.sharding.catalog.reads import read_routing
from shardwright.sharding.namespace import Namespace
from shardwright.sharding.time_series import GRANULARITIES, TimeSeriesFields, is_coarser
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError, unknown_field
from shardwright.wire.rawbson import encode_document

_NOT_TIME_SERIES: Final = 6159000
_OTHER_OPTIONS: Final = 5731500
_NOT_FOR_OTHERS: Final = 6201808
"""MongoDB's numbers for errors without a name."""


class MeaningChangedError(CommandError):
    """The target of a change was replaced before its locks were held. Nothing has been changed, and it is repeated."""

    def __init__(self, namespace: Namespace) -> None:
        super().__init__(
            ErrorCode.ConflictingOperationInProgress, f"another operation has changed the collection {namespace}"
        )


async def buckets_to_shard(
    context: ShardContext, namespace: Namespace, arguments: Mapping[str, Any]
) -> tuple[Namespace, Mapping[str, Any]]:
    """Convert a request to shard a time-series collection to a request for its buckets and their key.

    Returns:
        The namespace and arguments, unchanged if the collection is neither a time-series collection nor to become one.

    Raises:
        CommandError: 5731500, it exists with other options; 6159000, the name of its buckets is taken; or an error of
            `TimeSeriesFields.buckets_key`.
    """
    if namespace.is_time_series_buckets:
        return namespace, arguments
    buckets, requested = namespace.buckets, arguments.get("timeseries")
    existing = await local_collections.describe(context.mongod, buckets)
    if existing is None and requested is None:
        return namespace, arguments
    options = requested
    if existing is not None:
        options = existing.options.get("timeseries")
        if options is None:
            raise CommandError(_NOT_TIME_SERIES, f"the collection '{buckets}' does not have 'timeseries' options")
        if requested is not None:
            present = TimeSeriesFields.from_document(options)
            if not TimeSeriesFields.from_document(requested).makes_buckets_like(present):
                raise CommandError(
                    _OTHER_OPTIONS,
                    f"the 'timeseries' spec provided must match that of exists '{namespace}' collection",
                )
            options = requested
    fields = TimeSeriesFields.from_document(options or {})
    key = fields.buckets_key(arguments["shardKey"])
    return buckets, {**arguments, "shardKey": key, "timeseries": fields.to_document()}


async def sharded_time_series(context: ShardContext, namespace: Namespace) -> TimeSeriesFields | None:
    """Return the bucketing of a sharded time-series collection; None for any other collection."""
    if namespace.is_time_series_buckets:
        return None
    table = await (await context.catalog()).read(read_routing(str(namespace.buckets)))
    return None if table is None else table.collection.time_series


def change_of_buckets(fields: TimeSeriesFields, namespace: Namespace, change: Mapping[str, Any]) -> dict[str, Any]:
    """Convert the fields of a ``collMod`` of measurements to those for their buckets.

    Args:
        fields: the bucketing of the measurements.
        change: the fields of the request that describe the change.

    Raises:
        CommandError: IndexNotFound, measurements have no index with such a key.
    """
    changed = dict(change)
    index = change.get("index")
    if isinstance(index, Mapping) and isinstance(key := index.get("keyPattern"), Mapping):
        try:
            changed["index"] = {**index, "keyPattern": fields.buckets_index_key(key)}
        except CommandError as error:
            command = document_text(encode_document({"collMod": namespace.collection, **change}))
            raise CommandError(
                ErrorCode.IndexNotFound, f"{error.code_name}: {error.message} Command request: {command}"
            ) from error
    return changed


def granularity_of(change: Mapping[str, Any]) -> str | None:
    """Return the granularity that a ``collMod`` sets; None if it sets none.

    Raises:
        CommandError: BadValue, it is not one; 40415, the command changes another option of time-series collections.
    """
    options = change.get("timeseries")
    if not isinstance(options, Mapping):
        return None
    for name in options:
        if name != "granularity":
            raise unknown_field(f"_shardsvrCollMod.timeseries.{name}")
    granularity: object = options.get("granularity")
    if granularity is not None and granularity not in GRANULARITIES:
        raise CommandError(
            ErrorCode.BadValue,
            f"Enumeration value '{granularity}' for field '_shardsvrCollMod.timeseries.granularity' is not a valid "
            "value.",
        )
    return None if granularity is None else str(granularity)


async def check_is_time_series(context: ShardContext, namespace: Namespace) -> None:
    """Refuse time-series options for any other collection, with 6201808."""
    if namespace.is_time_series_buckets or await local_collections.describe(context.mongod, namespace.buckets) is None:
        raise CommandError(_NOT_FOR_OTHERS, "Cannot use time-series options for a non-timeseries collection")


def check_not_finer(granularity: str, fields: TimeSeriesFields) -> None:
    """Check that a granularity is the current one or coarser, else raise InvalidOptions."""
    if is_coarser(fields.granularity, granularity):
        raise CommandError(
            ErrorCode.InvalidOptions,
            "Invalid transition for timeseries.granularity. Can only transition from 'seconds' to 'minutes' or "
            "'minutes' to 'hours'.",
        )
