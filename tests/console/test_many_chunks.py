"""No view grows with the number of chunks, and none is read again while nothing has changed."""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Final
from uuid import uuid4

import pytest
from bson import Binary, MaxKey, MinKey, ObjectId, Timestamp

from shardwright.console.chunk_bands import BANDS_MAX, LISTED_MAX
from tests.console.browser import Browser
from tests.local_cluster import Client, RunningCluster

NAMESPACE: Final = "many.chunks"
CHUNKS: Final = 10_000
"""Writing more takes minutes on a busy machine; 100,000 give pages of the same size."""
PAGE_BYTES_MAX: Final = 500_000


@pytest.fixture(scope="module")
def many(cluster: RunningCluster) -> Iterator[str]:
    """A collection whose chunks are in the catalog alone."""
    first, second = sorted(cluster.shards)
    uuid = Binary.from_uuid(uuid4())
    epoch, timestamp = ObjectId(), Timestamp(1_700_000_000, 1)
    bounds: list[object] = [MinKey(), *range(CHUNKS - 1), MaxKey()]
    chunks = [
        {
            "_id": ObjectId(),
            "uuid": uuid,
            "min": {"a": bounds[number]},
            "max": {"a": bounds[number + 1]},
            "shard": second if number < CHUNKS // 4 else first,
            "lastmod": Timestamp(2, number),
            "history": [{"validAfter": timestamp, "shard": first}],
        }
        for number in range(CHUNKS)
    ]
    entry = {
        "_id": NAMESPACE,
        "lastmodEpoch": epoch,
        "lastmod": datetime.now(UTC),
        "timestamp": timestamp,
        "uuid": uuid,
        "key": {"a": 1},
        "unique": False,
        "noBalance": True,
    }
    with cluster.direct("config.0.mongod") as config:
        try:
            config.config.chunks.insert_many(chunks, ordered=False)
            config.config.collections.insert_one(entry)
            yield NAMESPACE
        finally:
            config.config.collections.delete_one({"_id": NAMESPACE})
            config.config.chunks.delete_many({"uuid": uuid})


def test_views_are_bounded(browser: Browser, many: str) -> None:
    found = browser.api("chunk-map", ns=many)
    assert found["chunks"] == CHUNKS
    assert len(found["bands"]) <= BANDS_MAX
    assert sum(band["shards"].get("shard1", 0) for band in found["bands"]) == CHUNKS // 4
    listed = browser.api("chunks", ns=many)
    assert len(listed["chunks"]) == LISTED_MAX
    assert listed["hasMore"]
    for path in (f"/collection?ns={many}", f"/chunks?ns={many}", "/collections"):
        answer = browser.get(path)
        assert answer.status == 200
        assert len(answer.body) < PAGE_BYTES_MAX
    (row,) = [each for each in browser.api("collections")["collections"] if each["ns"] == many]
    assert row["chunksByShard"] == {"shard0": CHUNKS * 3 // 4, "shard1": CHUNKS // 4}


def test_what_has_not_changed_is_not_read_again(browser: Browser, many: str, cluster: RunningCluster) -> None:
    browser.api("chunk-map", ns=many)
    browser.api("collections")
    with cluster.direct("config.0.mongod") as config:
        before = _examined(config)
        for _ in range(5):
            browser.api("chunk-map", ns=many)
            browser.api("collections")
        assert _examined(config) - before < CHUNKS / 10


def _examined(config: Client) -> int:
    """Keys of indexes and documents that a mongod has examined."""
    examined = config.admin.command("serverStatus")["metrics"]["queryExecutor"]
    return int(examined["scanned"]) + int(examined["scannedObjects"])
