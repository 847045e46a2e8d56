"""``collStats`` of a collection, merged from its shards' replies."""

from typing import Any

import bson
import pytest

from shardwright.router.ddl.merged_replies import merge_collection_stats, scale_of
from shardwright.wire.errors import CommandError


def stats(**fields: Any) -> dict[str, Any]:  # noqa: ANN401 - any BSON value
    """A shard's reply for a collection of ten documents of 15 bytes."""
    return {
        "ns": "s.c",
        "size": 150,
        "count": 10,
        "avgObjSize": 15,
        "numOrphanDocs": 1,
        "storageSize": 4096,
        "freeStorageSize": 150,
        "capped": False,
        "nindexes": 1,
        "totalIndexSize": 4096,
        "totalSize": 8192,
        "indexSizes": {"_id_": 4096},
        "scaleFactor": 1,
        "ok": 1.0,
        **fields,
    }


def test_sums_over_shards() -> None:
    other = stats(size=60, count=2, avgObjSize=30, nindexes=1, maxSize=100)
    merged = merge_collection_stats("s.c", {"a": stats(maxSize=50), "b": other}, scale=1, chunks=3)
    shards = merged.pop("shards")
    assert merged == {
        "capped": False,
        "ns": "s.c",
        "count": 12,
        "freeStorageSize": 300,
        "numOrphanDocs": 2,
        "size": 210,
        "storageSize": 8192,
        "totalIndexSize": 8192,
        "totalSize": 16384,
        "indexSizes": {"_id_": 8192},
        "avgObjSize": 17.5,
        "maxSize": 100,
        "nindexes": 1,
        "scaleFactor": 1,
        "nchunks": 3,
    }
    assert isinstance(merged["maxSize"], bson.Int64)
    assert shards == {"a": stats(maxSize=50), "b": other}


def test_sums_are_scaled_and_not_scaled_values_summed() -> None:
    merged = merge_collection_stats("s.c", {"a": stats(), "b": stats()}, scale=100, chunks=1)
    assert merged["size"] == 3  # and not 1 + 1
    assert merged["freeStorageSize"] == 3
    assert merged["count"] == 20
    assert merged["avgObjSize"] == 15.0
    assert merged["scaleFactor"] == 100
    assert merged["shards"]["a"]["size"] == 1
    assert merged["shards"]["a"]["indexSizes"] == {"_id_": 40}
    assert merged["shards"]["a"]["scaleFactor"] == 100
    assert merged["shards"]["a"]["count"] == 10


def test_different_numbers_of_indexes_give_a_warning() -> None:
    merged = merge_collection_stats("s.c", {"a": stats(nindexes=3), "b": stats(nindexes=2)}, scale=1, chunks=2)
    assert merged["nindexes"] == 3
    assert merged["warning"] == "indexes don't all match - ok if ensureIndex is running"


def test_shard_where_the_collection_does_not_exist_gives_no_warning() -> None:
    missing = {"ns": "s.c", "size": 0, "count": 0, "nindexes": 0, "indexSizes": {}, "ok": 1.0}
    merged = merge_collection_stats("s.c", {"a": missing, "b": stats()}, scale=1, chunks=2)
    assert "warning" not in merged
    assert merged["count"] == 10


def test_time_series_buckets() -> None:
    first = {"bucketsNs": "s.system.buckets.c", "bucketCount": 2, "avgBucketSize": 100, "numCommits": 5}
    second = {"bucketsNs": "s.system.buckets.c", "bucketCount": 6, "avgBucketSize": 200, "numCommits": 1}
    merged = merge_collection_stats(
        "s.c", {"a": stats(timeseries=first), "b": stats(timeseries=second)}, scale=1, chunks=2
    )
    assert merged["timeseries"] == {
        "bucketsNs": "s.system.buckets.c",
        "avgBucketSize": 175,
        "bucketCount": 8,
        "numCommits": 6,
    }


@pytest.mark.parametrize(("value", "scale"), [(None, 1), (1024, 1024), (2.9, 2), (bson.Int64(3), 3), (False, 1)])
def test_scale(value: object, scale: int) -> None:
    assert scale_of(value) == scale


@pytest.mark.parametrize(
    ("value", "code"),
    [(0, 4390200), (-5, 4390200), (0.5, 4390200), ("x", 4390201), (True, 4390201), ({}, 4390201), ("", 4390201)],
)
def test_scale_that_is_none(value: object, code: int) -> None:
    with pytest.raises(CommandError) as raised:
        scale_of(value)
    assert raised.value.code == code
