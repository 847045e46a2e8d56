"""``dbStats`` of a database, merged from the replies of all shards."""

from shardwright.router.ddl.merged_replies import merge_database_stats

ABSENT = {
    "db": "s",
    "collections": 0,
    "views": 0,
    "objects": 0,
    "avgObjSize": 0,
    "dataSize": 0,
    "storageSize": 0,
    "indexes": 0,
    "indexSize": 0,
    "totalSize": 0,
    "scaleFactor": 1,
    "fsUsedSize": 0,
    "fsTotalSize": 0,
    "ok": 1.0,
}
PRESENT = ABSENT | {
    "collections": 2,
    "views": 1,
    "objects": 10,
    "avgObjSize": 21.5,
    "dataSize": 215.0,
    "storageSize": 4096.0,
    "indexes": 2,
    "indexSize": 4096.0,
    "totalSize": 8192.0,
    "fsUsedSize": 1000.0,
    "fsTotalSize": 2000.0,
}


def test_sums() -> None:
    other = PRESENT | {"objects": 30, "avgObjSize": 1.5, "dataSize": 45.0}
    merged = merge_database_stats("s", [PRESENT, ABSENT, other], scale=1)
    assert merged == {
        "db": "s",
        "collections": 4,
        "views": 2,
        "objects": 40,
        "avgObjSize": 6.5,
        "dataSize": 260.0,
        "storageSize": 8192.0,
        "totalSize": 16384.0,
        "indexes": 4,
        "indexSize": 8192.0,
        "scaleFactor": 1,
        "fsUsedSize": 2000.0,
        "fsTotalSize": 4000.0,
    }


def test_sizes_are_doubles_and_counts_are_not() -> None:
    merged = merge_database_stats("s", [ABSENT], scale=1024)
    counts = {"collections", "views", "objects", "indexes", "scaleFactor"}
    assert {name for name, value in merged.items() if isinstance(value, int)} == counts
    assert merged["scaleFactor"] == 1024


def test_free_storage_only_where_it_was_asked_for() -> None:
    free = {"freeStorageSize": 1.0, "indexFreeStorageSize": 2.0, "totalFreeStorageSize": 3.0}
    merged = merge_database_stats("s", [PRESENT | free, PRESENT | free], scale=1)
    assert [merged[name] for name in free] == [2.0, 4.0, 6.0]
