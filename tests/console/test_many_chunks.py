"""No view grows with the number of chunks, and none is read again while nothing has changed."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import pytest
from bson import Binary, MaxKey, MinKey, ObjectId, Timestamp

from shardwright.console.api import ENDPOINTS, Endpoint
from shardwright.console.chunk_reads import BANDS_MAX, LISTED_MAX
from tests import sampling
from tests.console.browser import Browser, RunningConsole, running_console
from tests.console.chromium import Chromium, Tab, check_first_paint, needs_chromium
from tests.console.conftest import NAMESPACE as OTHER
from tests.console.test_screenshots import PAGES, WIDE
from tests.local_cluster import Client, RunningCluster

NAMESPACE: Final = "many.chunks"
CHUNKS: Final = sampling.many(100_000, 10_000)
"""Writing more takes minutes on a busy machine."""
PAGE_BYTES_MAX: Final = 500_000
OF_MANY: Final = [each for each in PAGES if each != "why"]
"""The pages without the explanation, which needs a collection that also exists on shards."""
MEASURED_SECONDS: Final = 60
MEMORY_BYTES_MAX: Final = 200_000_000


@contextmanager
def chunks_in_catalog(cluster: RunningCluster, namespace: str, count: int, copies: int = 0) -> Iterator[None]:
    """Keep a collection and copies ``NAMESPACE1``, ``NAMESPACE2`` … in the catalog alone until the block ends."""
    first, second = sorted(cluster.shards)
    names = [namespace, *(f"{namespace}{number}" for number in range(1, copies + 1))]
    uuids = [Binary.from_uuid(uuid4()) for _ in names]
    epoch, timestamp = ObjectId(), Timestamp(1_700_000_000, 1)
    bounds: list[object] = [MinKey(), *range(count - 1), MaxKey()]
    chunks: list[dict[str, Any]] = [
        {
            "min": {"a": bounds[number]},
            "max": {"a": bounds[number + 1]},
            "shard": second if number < count // 4 else first,
            "lastmod": Timestamp(2, number),
            "history": [{"validAfter": timestamp, "shard": first}],
        }
        for number in range(count)
    ]
    entries = [
        {
            "_id": name,
            "lastmodEpoch": epoch,
            "lastmod": datetime.now(UTC),
            "timestamp": timestamp,
            "uuid": uuid,
            "key": {"a": 1},
            "unique": False,
            "noBalance": True,
        }
        for name, uuid in zip(names, uuids, strict=True)
    ]
    with cluster.direct("config.0.mongod") as config:
        try:
            for uuid in uuids:
                for chunk in chunks:
                    chunk |= {"_id": ObjectId(), "uuid": uuid}
                config.config.chunks.insert_many(chunks, ordered=False)
            config.config.collections.insert_many(entries)
            yield
        finally:
            config.config.collections.delete_many({"_id": {"$in": names}})
            config.config.chunks.delete_many({"uuid": {"$in": uuids}})


@pytest.fixture(scope="module")
def many(cluster: RunningCluster) -> Iterator[str]:
    """A collection of many chunks."""
    with chunks_in_catalog(cluster, NAMESPACE, CHUNKS):
        yield NAMESPACE


def of_many(path: str) -> str:
    """Return the address of a page for the collection of many chunks."""
    return path.replace(OTHER, NAMESPACE)


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


@pytest.mark.parametrize("page", OF_MANY)
def test_a_page_does_not_grow_with_the_chunks(browser: Browser, many: str, page: str) -> None:
    answer = browser.get(of_many(PAGES[page]))
    assert answer.status == 200
    assert len(answer.body) < PAGE_BYTES_MAX


READS: Final = [each for each in ENDPOINTS if each.method == "GET"]
GIVEN: Final = {"ns": NAMESPACE, "action": "drain-shard", "shard": "shard1"}


@pytest.mark.parametrize("endpoint", READS, ids=lambda endpoint: endpoint.path)
def test_a_reply_of_the_api_does_not_grow_with_the_chunks(browser: Browser, many: str, endpoint: Endpoint) -> None:
    query = {name: GIVEN[name] for name in (each.rstrip("?") for each in endpoint.parameters) if name in GIVEN}
    answer = browser.get(f"/api/{endpoint.path}", **query)
    assert answer.status == 200
    assert len(answer.body) < PAGE_BYTES_MAX


@needs_chromium
@pytest.mark.exhaustive
@pytest.mark.parametrize("page", OF_MANY)
def test_a_page_is_painted_fast(many: str, open_console: RunningConsole, chromium: Chromium, page: str) -> None:
    tab = Tab(chromium, open_console.url)
    tab.show(*WIDE)
    check_first_paint(tab, of_many(PAGES[page]))


@needs_chromium
def test_the_map_has_a_band_for_a_pixel_or_two(many: str, open_console: RunningConsole, chromium: Chromium) -> None:
    tab = Tab(chromium, open_console.url)
    tab.open(f"/collection?ns={many}")
    assert 0 < tab.run("document.querySelectorAll('.chunk-map .band').length") <= BANDS_MAX


def test_what_has_not_changed_is_not_read_again(browser: Browser, many: str, cluster: RunningCluster) -> None:
    browser.api("chunk-map", ns=many)
    browser.api("collections")
    with cluster.direct("config.0.mongod") as config:
        before = _examined(config)
        for _ in range(5):
            browser.api("chunk-map", ns=many)
            browser.api("collections")
        assert _examined(config) - before < CHUNKS / 10


@pytest.mark.exhaustive
def test_ten_large_collections_cost_a_percent_of_a_core(cluster: RunningCluster, tmp_path: Path) -> None:
    """Measure CPU time and memory for a minute without a page, and a minute with an open list of collections."""
    log = tmp_path / "console.log"
    with (
        chunks_in_catalog(cluster, "ten.chunks", 100_000, copies=9),
        running_console(cluster.directory, log, "--sample-seconds", "5") as console,
    ):
        browser = console.browser()
        began = time.monotonic()
        rows = [each for each in browser.api("collections")["collections"] if each["ns"].startswith("ten.")]
        print(f"the first list took {time.monotonic() - began:.1f} s")
        assert [each["chunks"] for each in rows] == [100_000] * 10
        for row in rows:
            assert browser.get("/collection", ns=row["ns"]).status == 200
        for opened in ((), ("/collections",)):
            cpu, ends = _cpu_seconds(console), time.monotonic() + MEASURED_SECONDS
            while time.monotonic() < ends:
                for path in opened:
                    assert browser.get(path).status == 200
                time.sleep(10)  # as an open list is refreshed
            share = (_cpu_seconds(console) - cpu) / MEASURED_SECONDS
            print(f"{opened}: {share:.2%} of a core, {_resident_bytes(console) / 1e6:.0f} MB")
            assert share < 0.01
            assert _resident_bytes(console) < MEMORY_BYTES_MAX


def _cpu_seconds(console: RunningConsole) -> float:
    fields = Path(f"/proc/{console.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _resident_bytes(console: RunningConsole) -> int:
    pages = Path(f"/proc/{console.process.pid}/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def _examined(config: Client) -> int:
    """Keys of indexes and documents that a mongod has examined."""
    examined = config.admin.command("serverStatus")["metrics"]["queryExecutor"]
    return int(examined["scanned"]) + int(examined["scannedObjects"])
