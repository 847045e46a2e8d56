"""Reads of a time-series collection, translated into reads of its buckets.

The first stage unpacks the buckets into measurements. Stages that belong before it move there as soon as the view is
resolved, as in MongoDB's routers. A mongod moves them too, but only in a whole pipeline that begins with that stage. A
shard's part begins with the ownership filter, and its results must have the sort keys that unpacking removes.
"""

from collections.abc import Sequence
from typing import Final

from shardwright.sharding.pipelines.pipeline import Stage
from shardwright.sharding.time_series import TimeSeriesFields
from shardwright.wire.errors import CommandError
from shardwright.wire.rawbson import (
    EMPTY_DOCUMENT,
    OBJECT,
    STRING,
    encode_document,
    find,
    is_string,
    string_value,
    with_value,
)

UNPACK_BUCKET: Final = "$_internalUnpackBucket"
"""First stage of reads, which unpacks the buckets of a time-series collection into measurements."""

CONVERT_INDEX_STATS: Final = "$_internalConvertBucketIndexStats"
"""Stage after ``$indexStats`` that shows the indexes of buckets as indexes of measurements."""


_CHANGED_FIELDS: Final = ("exclude", "computedMetaProjFields")


def stages_of_buckets(stages: Sequence[bytes]) -> list[bytes]:
    """Translate raw stages of a view and of a read of it into reads of buckets; the first stage unpacks buckets."""
    unpacking, *others = (Stage.parse(stage) for stage in stages)
    fields = unpacked_fields(unpacking)
    if fields is None or not others:
        return list(stages)
    if others[0].name == "$indexStats":
        # This reports the buckets' indexes, and does not read their measurements.
        meta = {} if fields.meta_field is None else {"metaField": fields.meta_field}
        conversion = encode_document({CONVERT_INDEX_STATS: {"timeField": fields.time_field, **meta}})
        return [stages[1], conversion, *stages[2:]]
    near = _near_buckets(others[0], fields) if others[0].name == "$geoNear" else None
    return list(stages) if near is None else [near, stages[0], *stages[2:]]


def with_hint_for_buckets(body: bytes, fields: TimeSeriesFields) -> bytes:
    """Translate the hint of an ``aggregate`` for its buckets.

    A hint that is not for an index of measurements stays as it is, for mongod to refuse.
    """
    hint = find(body, b"hint")
    if hint is None or hint[0] != OBJECT:
        return body
    try:
        return with_value(body, hint, fields.buckets_hint(body[hint[2] : hint[3]]))
    except CommandError:
        return body


def unpacked_fields(stage: Stage) -> TimeSeriesFields | None:
    """Return the bucketing parameters of an unpacking stage.

    None if it is another stage, or a client's own that mongod refuses or that leaves fields out.
    """
    fields = stage.specification if stage.name == UNPACK_BUCKET else None
    if not isinstance(fields, dict) or "include" in fields or any(fields.get(name) for name in _CHANGED_FIELDS):
        return None
    time, meta = fields.get("timeField"), fields.get("metaField")
    return TimeSeriesFields(time, meta) if is_string(time) and (meta is None or is_string(meta)) else None


def _near_buckets(stage: Stage, fields: TimeSeriesFields) -> bytes | None:
    """Translate a ``$geoNear`` of measurements into one of buckets.

    None if it is not about positions in the metadata, or mongod refuses it for time-series collections.
    """
    kind, _, start, end = stage.span
    near = stage.raw[start:end]
    key = find(near, b"key") if kind == OBJECT else None
    if key is None or key[0] != STRING:
        return None
    path = fields.renamed(near[key[2] + 4 : key[3] - 1].decode(errors="replace"))
    query = find(near, b"query")
    if path is None or (query is not None and near[query[2] : query[3]] != EMPTY_DOCUMENT):
        return None
    return with_value(stage.raw, stage.span, with_value(near, key, string_value(path)))
