"""Merging the shards' replies about collections and databases, and the options of collections.

Most commands return each shard's reply under ``raw``, with the first error at the top level. Where MongoDB does not
merge, the reply is the first shard's, with each shard's reply added under its shard id. ``collStats``, ``validate``,
``listDatabases`` and ``dbStats`` have rules of their own.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import bson

from shardwright.router.replies.shard_reply import ShardReply, answer_of, without_ok
from shardwright.sharding.targeting.values import ICU_DEFAULTS
from shardwright.sharding.versions import CONFIG_SHARD
from shardwright.wire.arguments import Arguments, clamp_int64
from shardwright.wire.error_codes import ErrorCode, code_name
from shardwright.wire.errors import CommandError, missing_field, unknown_field
from shardwright.wire.rawbson import decode_document
from shardwright.wire.request import Request

Options = Mapping[str, Any]

_CAPPED_SIZE_UNIT: Final = 256

_DEFAULTS: Final[Options] = {
    "capped": False,
    "max": 0,
    "temp": False,
    "storageEngine": {},
    "indexOptionDefaults": {},
    "validator": {},
    "validationLevel": "strict",
    "validationAction": "error",
    "viewOn": "",
    "pipeline": [],
    "expireAfterSeconds": None,
    "changeStreamPreAndPostImages": {"enabled": False},
}

_EMPTY: Final = 1
"""The ``sizeOnDisk`` of an empty database in a storage engine without files."""

_MEGABYTE: Final = 1024 * 1024


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


def are_options_equal(requested: Options, existing: Options) -> bool:
    """Whether a collection has the options of a ``create``.

    Args:
        existing: ``options`` of the collection's entry in ``listCollections``.
    """
    return _canonical(requested) == _canonical(existing)


def _canonical(options: Options) -> bytes:
    """Encode the options that matter, with defaults filled in, in a fixed order."""
    canonical = {name: options.get(name, default) for name, default in _DEFAULTS.items()}
    canonical["capped"] = bool(canonical["capped"])
    canonical["size"] = _rounded(int(options.get("size") or 0)) if canonical["capped"] else 0
    for name, fill in _FILLED.items():
        value = options.get(name)
        canonical[name] = fill(value) if isinstance(value, Mapping) else value
    return bson.encode(canonical)


def _rounded(size: int) -> int:
    return -(-size // _CAPPED_SIZE_UNIT) * _CAPPED_SIZE_UNIT


def _collation(collation: Options) -> Options | None:
    if collation.get("locale") == "simple":
        return None
    filled = {**ICU_DEFAULTS, **collation}
    filled.pop("version", None)
    return dict(sorted(filled.items()))


def _time_series(options: Options) -> Options:
    filled = {"granularity": "seconds", **options}
    filled.pop("bucketMaxSpanSeconds", None)
    return dict(sorted(filled.items()))


def _clustered_index(index: Options) -> Options:
    return dict(sorted({"v": 2, "name": "_id_", **index}.items()))


_FILLED: Final[Mapping[str, Callable[[Options], Options | None]]] = {
    "collation": _collation,
    "timeseries": _time_series,
    "clusteredIndex": _clustered_index,
}
"""Options that are documents whose missing fields mongod fills in."""

_SCALE_TOO_SMALL: Final = 4390200
_SCALE_NOT_A_NUMBER: Final = 4390201

_SCALED_SUMS: Final = ("freeStorageSize", "size", "storageSize", "totalIndexSize", "totalSize")
_SUMS: Final = tuple(sorted(("count", "numOrphanDocs", *_SCALED_SUMS)))
_OF_FIRST_SHARD: Final = ("userFlags", "capped", "max", "paddingFactorNote", "indexDetails", "wiredTiger")
"""Fields that are the same on all shards or cannot be summed, so that mongos shows one shard's."""

_SCALED_OF_SHARD: Final = frozenset({*_SCALED_SUMS, "maxSize"})

Stats = Mapping[str, Any]


def scale_of(value: object) -> int:
    """Return the scale in a client's command.

    Raises:
        CommandError: 4390200, it is less than one; 4390201, it is not a number.
    """
    if isinstance(value, int | float) and not isinstance(value, bool):
        scale = clamp_int64(value)
        if scale < 1:
            raise CommandError(_SCALE_TOO_SMALL, "scale has to be >= 1")
        return scale
    if value is not None and value is not False:
        raise CommandError(_SCALE_NOT_A_NUMBER, "scale has to be a number >= 1")
    return 1


def merge_collection_stats(namespace: str, shards: Mapping[str, Stats], *, scale: int, chunks: int) -> dict[str, Any]:
    """Merge the statistics of a collection, without the first fields of the reply (``sharded``, ``primary``).

    Args:
        shards: the unscaled statistics of each shard.
        scale: the divisor of sizes.
    """
    merged: dict[str, Any] = {}
    for stats in shards.values():
        for name in _OF_FIRST_SHARD:
            if name in stats:
                merged.setdefault(name, stats[name])
    counts = {stats["nindexes"] for stats in shards.values() if stats.get("nindexes")}
    if len(counts) > 1:
        merged["warning"] = "indexes don't all match - ok if ensureIndex is running"
    merged["ns"] = namespace
    for name in _SUMS:
        if any(name in stats for stats in shards.values()):
            total = sum(int(stats.get(name, 0)) for stats in shards.values())
            merged[name] = total // scale if name in _SCALED_SUMS else total
    buckets = [stats["timeseries"] for stats in shards.values() if "timeseries" in stats]
    if buckets:
        merged["timeseries"] = _merge_time_series(buckets)
    merged["indexSizes"] = {name: size // scale for name, size in _index_sizes(shards).items()}
    merged["avgObjSize"] = _average_size_in_collection(shards)
    merged["maxSize"] = bson.Int64(max((int(stats.get("maxSize", 0)) for stats in shards.values()), default=0) // scale)
    merged["nindexes"] = max(counts, default=0)
    merged["scaleFactor"] = scale
    merged["nchunks"] = chunks
    merged["shards"] = {shard: _scaled(stats, scale) for shard, stats in shards.items()}
    return merged


def _index_sizes(shards: Mapping[str, Stats]) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for stats in shards.values():
        for name, size in stats.get("indexSizes", {}).items():
            sizes[name] = sizes.get(name, 0) + int(size)
    return dict(sorted(sizes.items()))


def _average_size_in_collection(shards: Mapping[str, Stats]) -> float:
    """Return the average size of all documents; each shard's average is weighted by its count."""
    count = sum(int(stats.get("count", 0)) for stats in shards.values())
    size = sum(int(stats.get("avgObjSize", 0)) * int(stats.get("count", 0)) for stats in shards.values())
    return size / count if count else 0.0


def _merge_time_series(shards: list[Mapping[str, Any]]) -> dict[str, Any]:
    """Merge the statistics of buckets: everything is summed, except for their name and average size."""
    names = sorted({name for stats in shards for name in stats if name not in ("bucketsNs", "avgBucketSize")})
    sums = {name: sum(int(stats.get(name, 0)) for stats in shards) for name in names}
    size = sum(int(stats.get("avgBucketSize", 0)) * int(stats.get("bucketCount", 0)) for stats in shards)
    count = sums.get("bucketCount", 0)
    sums["avgBucketSize"] = size // count if count else 0
    return {"bucketsNs": shards[0]["bucketsNs"], **dict(sorted(sums.items()))}


def _scaled(stats: Stats, scale: int) -> dict[str, Any]:
    """Scale the statistics of one shard as the shard itself would."""
    scaled: dict[str, Any] = {}
    for name, value in stats.items():
        if name in _SCALED_OF_SHARD:
            scaled[name] = int(value) // scale
        elif name == "scaleFactor":
            scaled[name] = scale
        elif name == "indexSizes":
            scaled[name] = {index: int(size) // scale for index, size in value.items()}
        else:
            scaled[name] = value
    return scaled


def merge_validation(replies: Sequence[ShardReply]) -> dict[str, Any]:
    """Merge validation results; the collection is valid if each shard's part is.

    Unlike in other merged replies, ``raw`` is keyed by shard id.

    Raises:
        CommandError: the error of the first shard that failed, with ``raw``.
    """
    raw = {reply.shard_id: answer_of(reply) for reply in replies}
    for reply in replies:
        if reply.error is not None:
            raise CommandError(reply.error.code, reply.error.message, extra={"raw": raw})
    return {"valid": all(bool(answer["valid"]) for answer in raw.values()), "raw": raw}


_OPTION: Final = "shardCollection.timeseries"
_SPAN_SECONDS: Final = {"seconds": 3600, "minutes": 86_400, "hours": 2_592_000}
_TIME_SERIES_FIELDS: Final = ("timeField", "metaField", "granularity", "bucketMaxSpanSeconds")

_OTHER_SPAN: Final = 5510500
"""MongoDB's error code for a span that does not follow from the granularity."""


def check_time_series(request: Request) -> None:
    """Refuse time-series options that are invalid in themselves.

    Raises:
        CommandError: TypeMismatch, 40414, 40415, BadValue or 5510500.
    """
    raw = Arguments.of(request, "shardCollection").maybe_raw(b"timeseries")
    if raw is None:
        return
    options: dict[str, Any] = decode_document(raw)
    for name in options:
        if name not in _TIME_SERIES_FIELDS:
            raise unknown_field(f"{_OPTION}.{name}")
    if "timeField" not in options:
        raise missing_field(f"{_OPTION}.timeField")
    granularity = options.get("granularity", "seconds")
    if granularity not in _SPAN_SECONDS:
        raise CommandError(
            ErrorCode.BadValue,
            f"Enumeration value '{granularity}' for field '{_OPTION}.granularity' is not a valid value.",
        )
    expected = _SPAN_SECONDS[granularity]
    if options.get("bucketMaxSpanSeconds", expected) != expected:
        raise CommandError(
            _OTHER_SPAN,
            "Timeseries 'bucketMaxSpanSeconds' is not configurable to a value other than the default of "
            f"{expected} for the provided granularity",
        )


def merge_database_lists(
    lists: Mapping[str, Sequence[Mapping[str, Any]]],
    *,
    names_only: bool = False,
    is_visible: Callable[[str], bool] = lambda _: True,
) -> dict[str, Any]:
    """Merge lists of databases, in alphabetical order, with total sizes and sizes per shard.

    ``local`` is each server's own and not shown. ``admin`` is on the config servers. ``config`` is on the config
    servers, and on the shards as caches of it.

    Args:
        lists: ``databases`` of each shard's reply by shard id, already filtered by the client's filter.
    """
    sizes: dict[str, dict[str, int]] = {}
    for shard, databases in lists.items():
        for database in databases:
            name = database["name"]
            if _is_shown(name, on_config_servers=shard == CONFIG_SHARD) and is_visible(name):
                sizes.setdefault(name, {})[shard] = int(database.get("sizeOnDisk", 0))
    if names_only:
        return {"databases": [{"name": name} for name in sorted(sizes)]}
    totals = {name: _total_size(by_shard) for name, by_shard in sizes.items()}
    total = sum(totals.values())
    return {
        "databases": [
            {
                "name": name,
                "sizeOnDisk": bson.Int64(totals[name]),
                "empty": totals[name] == _EMPTY,
                "shards": sizes[name],
            }
            for name in sorted(sizes)
        ],
        "totalSize": bson.Int64(total),
        "totalSizeMb": bson.Int64(total // _MEGABYTE),
    }


def _is_shown(name: str, *, on_config_servers: bool) -> bool:
    if on_config_servers:
        return name in ("admin", "config")
    return name not in ("admin", "local")


def _total_size(by_shard: Mapping[str, int]) -> int:
    """Add up sizes. The marker of an empty database counts only if the database is empty everywhere."""
    return sum(size for size in by_shard.values() if size != _EMPTY) or (_EMPTY if _EMPTY in by_shard.values() else 0)


_DATABASE_COUNTS: Final = frozenset({"collections", "views", "objects", "indexes"})
_DATABASE_FIELDS: Final = (
    "collections",
    "views",
    "objects",
    "avgObjSize",
    "dataSize",
    "storageSize",
    "totalSize",
    "indexes",
    "indexSize",
    "scaleFactor",
    "fsUsedSize",
    "fsTotalSize",
)
_FREE_STORAGE_FIELDS: Final = ("freeStorageSize", "indexFreeStorageSize", "totalFreeStorageSize")


def merge_database_stats(db: str, shards: Sequence[Mapping[str, Any]], *, scale: int) -> dict[str, Any]:
    """Merge the statistics of a database: counts are summed, and so are sizes, which are doubles.

    Args:
        shards: the scaled statistics of each shard.
        scale: the divisor of their sizes, which does not apply to the average document size.
    """
    merged: dict[str, Any] = {"db": db}
    has_free_storage = any(_FREE_STORAGE_FIELDS[0] in stats for stats in shards)
    for name in (*_DATABASE_FIELDS, *(_FREE_STORAGE_FIELDS if has_free_storage else ())):
        if name == "scaleFactor":
            merged[name] = scale
        elif name == "avgObjSize":
            merged[name] = _average_size_in_database(shards)
        elif name in _DATABASE_COUNTS:
            merged[name] = sum(int(stats.get(name, 0)) for stats in shards)
        else:
            merged[name] = float(sum(stats.get(name, 0) for stats in shards))
    return merged


def _average_size_in_database(shards: Sequence[Mapping[str, Any]]) -> float:
    objects = sum(int(stats["objects"]) for stats in shards)
    size = sum(float(stats["avgObjSize"]) * int(stats["objects"]) for stats in shards)
    return size / objects if objects else 0.0
