"""The API's figures equal an independent count."""

import time
from collections import Counter
from itertools import pairwise
from typing import Any

from tests.console.browser import Browser
from tests.console.conftest import NAMESPACE
from tests.local_cluster import Client, RunningCluster


def until(read: Any, *, seconds: float = 30.0) -> Any:  # noqa: ANN401 - any value
    deadline = time.monotonic() + seconds
    while not (found := read()):
        assert time.monotonic() < deadline
        time.sleep(0.2)
    return found


def test_chunks_by_shard(browser: Browser, client: Client) -> None:
    entries = {each["_id"]: each["uuid"] for each in client.config.collections.find()}
    found = browser.api("collections")["collections"]
    assert {each["ns"] for each in found} == entries.keys()
    for each in found:
        counted = Counter(chunk["shard"] for chunk in client.config.chunks.find({"uuid": entries[each["ns"]]}))
        assert each["chunksByShard"] == counted


def test_documents_by_shard(browser: Browser, cluster: RunningCluster) -> None:
    found = {each["shard"]: each["documents"] for each in browser.api("collection", ns=NAMESPACE)["byShard"]}
    for shard in sorted(cluster.shards):
        with cluster.direct(f"{shard}.0.shardd") as direct:
            assert found[shard] == direct.shop.orders.count_documents({})


def test_bands_tile_the_keys(browser: Browser) -> None:
    bands = browser.api("chunk-map", ns=NAMESPACE)["bands"]
    assert all(left["max"] == right["min"] for left, right in pairwise(bands))
    assert sum(band["chunks"] for band in bands) == browser.api("chunk-map", ns=NAMESPACE)["chunks"]


def test_a_band_leads_to_its_chunks(browser: Browser) -> None:
    bands = browser.api("chunk-map", ns=NAMESPACE)["bands"]
    for number, band in enumerate(bands):
        (chunk,) = browser.api("chunks", ns=NAMESPACE, band=number)["chunks"]
        assert (chunk["min"], chunk["max"]) == (band["min"], band["max"])


def test_members_and_versions(browser: Browser, cluster: RunningCluster) -> None:
    found = until(lambda: _with_versions(browser))
    assert {each["_id"] for each in found["shards"]} == set(cluster.shards)
    for shard in found["shards"]:
        assert [(each["state"], each["address"]) for each in shard["members"]] == [
            ("primary", cluster.address(f"{shard['_id']}.0.shardd"))
        ]
    assert {each["address"] for each in found["routers"]} >= {cluster.address("router.0")}


def _with_versions(browser: Browser) -> dict[str, Any] | None:
    found = browser.api("overview")
    return found if all(each["daemonVersion"] for shard in found["shards"] for each in shard["members"]) else None


def test_rates_come_from_the_metrics(browser: Browser, client: Client) -> None:
    def busy() -> Any:  # noqa: ANN401 - rows
        for number in range(20):
            client.shop.orders.find_one({"customer": number})
        rows = {each["command"]: each["rate"] for each in browser.api("operations")["commands"]}
        return rows.get("find")

    assert until(busy) > 0
    assert browser.api("operations")["history"]["at"]
