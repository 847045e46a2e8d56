"""DDL of time-series collections, whose buckets are what can be sharded."""

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
    """A change no longer means what it did before its locks were held: nothing has been changed, and it is repeated."""

    def __init__(self, namespace: Namespace) -> None:
        super().__init__(
            ErrorCode.ConflictingOperationInProgress, f"another operation has changed the collection {namespace}"
        )


async def buckets_to_shard(
    context: ShardContext, namespace: Namespace, arguments: Mapping[str, Any]
) -> tuple[Namespace, Mapping[str, Any]]:
    """What a request to shard a time-series collection is about: its buckets, by the key that these have.

    Args:
        context: this shard daemon's context.
        namespace: the collection to shard.
        arguments: of ``_shardsvrCreateCollection``.

    Returns:
        The namespace and the arguments as they are, if it is not a time-series collection and is not to become one.

    Raises:
        CommandError: 5731500, it exists with other options; 6159000, something else is where its buckets would be; or
            what `TimeSeriesFields.buckets_key` raises.
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
    """How the measurements of a sharded time-series collection are made into buckets; None if it is something else.

    Raises:
        CommandError: the catalog could not be read.
    """
    if namespace.is_time_series_buckets:
        return None
    table = await (await context.catalog()).read(read_routing(str(namespace.buckets)))
    return None if table is None else table.collection.time_series


def change_of_buckets(fields: TimeSeriesFields, namespace: Namespace, change: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a ``collMod`` of measurements, converted to one of their buckets.

    Args:
        fields: how measurements are made into buckets.
        namespace: the time-series collection.
        change: the fields of the request that say what to change.

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
    """The granularity that a ``collMod`` sets; None if it sets none.

    Raises:
        CommandError: BadValue, it is not one; 40415, another option of time-series collections is to change.
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
    """Refuse options of a time-series collection for anything else.

    Raises:
        CommandError: 6201808.
    """
    if namespace.is_time_series_buckets or await local_collections.describe(context.mongod, namespace.buckets) is None:
        raise CommandError(_NOT_FOR_OTHERS, "Cannot use time-series options for a non-timeseries collection")


def check_not_finer(granularity: str, fields: TimeSeriesFields) -> None:
    """Check that a granularity is the present one or coarser.

    Raises:
        CommandError: InvalidOptions.
    """
    if is_coarser(fields.granularity, granularity):
        raise CommandError(
            ErrorCode.InvalidOptions,
            "Invalid transition for timeseries.granularity. Can only transition from 'seconds' to 'minutes' or "
            "'minutes' to 'hours'.",
        )
