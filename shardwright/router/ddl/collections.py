"""Options of collections, and merging several shards' replies about one collection."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import bson

from shardwright.router.replies.shard_reply import ShardReply, answer_of
from shardwright.sharding.targeting.collation import ICU_DEFAULTS
from shardwright.wire.arguments import Arguments, clamp_int64
from shardwright.wire.error_codes import ErrorCode
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
    if value:
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
    merged["avgObjSize"] = _average_size(shards)
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


def _average_size(shards: Mapping[str, Stats]) -> float:
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
_FIELDS: Final = ("timeField", "metaField", "granularity", "bucketMaxSpanSeconds")

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
        if name not in _FIELDS:
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
