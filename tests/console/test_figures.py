"""The API's figures equal an independent count."""

import time
from collections import Counter
from itertools import pairwise
from typing import Any

import bson

from tests.console.browser import Browser, Tags
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


def test_bands_have_the_size_of_their_documents(browser: Browser, cluster: RunningCluster) -> None:
    assert {each["bytes"] for each in browser.api("chunk-map", ns=NAMESPACE)["bands"]} == {None}
    bands = browser.api("chunk-map", ns=NAMESPACE, measure=1)["bands"]
    with cluster.client() as client:
        for band in bands:
            low, high = (band[name]["customer"] for name in ("min", "max"))
            bounds = {"$gte": low} if isinstance(low, int) else {}
            bounds |= {"$lt": high} if isinstance(high, int) else {}
            query = {"customer": bounds} if bounds else {}
            stored = [len(bson.encode(each)) for each in client.shop.orders.find(query)]
            assert sum(stored) * 0.9 <= band["bytes"] <= sum(stored) * 1.1
    page = browser.get("/collection", ns=NAMESPACE, colour="size").text
    assert 'class="heat7"' in page
    assert "estimated" in page


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


def test_a_router_with_a_malformed_entry_is_left_out(browser: Browser, client: Client) -> None:
    began = browser.api("overview")["at"]
    client.config.mongos.insert_one({"_id": "odd:1", "ping": "today"})
    try:
        later = until(lambda: (found := browser.api("overview"))["at"] != began and found)
    finally:
        client.config.mongos.delete_one({"_id": "odd:1"})
    assert "odd:1" not in {each["address"] for each in later["routers"]}


def _with_versions(browser: Browser) -> dict[str, Any] | None:
    found = browser.api("overview")
    return found if all(each["daemonVersion"] for shard in found["shards"] for each in shard["members"]) else None


def test_operations_by_shape(browser: Browser, client: Client) -> None:
    for number in range(4):
        client.shop.orders.find_one({"customer": number, "counted": True})
    for number in range(3):
        list(client.shop.orders.find({"total": {"$gt": number}}))
        list(client.shop.orders.aggregate([{"$match": {"total": {"$lt": number}}}]))

    def shapes(order: str) -> dict[str, Any]:
        found = browser.api("query-shapes", by=order, ns=NAMESPACE)["shapes"]
        assert {each["ns"] for each in found} <= {NAMESPACE}
        return {str(each["shape"].get("filter")): each for each in found}

    targeted, scattered = "{'customer': '?', 'counted': '?'}", "{'total': {'$gt': '?'}}"
    found = until(lambda: shapes("count") if {targeted, scattered} <= shapes("count").keys() else None)
    assert (found[targeted]["count"], found[targeted]["scatterShare"], found[targeted]["meanShards"]) == (4, 0, 1)
    assert (found[scattered]["count"], found[scattered]["scatterShare"], found[scattered]["meanShards"]) == (3, 1, 2)
    assert found[targeted]["shape"] == {"find": "?", "filter": {"customer": "?", "counted": "?"}}
    assert found[targeted]["errors"] == 0
    assert found[targeted]["bytes"] > 0
    assert (found[targeted]["documents"], found[scattered]["documents"]) == (0, 3 * 101)
    assert 0 < found[targeted]["meanMillis"] <= found[targeted]["millis"]
    shares = [each["scatterShare"] for each in browser.api("query-shapes", by="scattered")["shapes"]]
    assert shares == sorted(shares, key=lambda each: -(each or 0))
    counts = [each["count"] for each in browser.api("query-shapes")["shapes"]]
    assert counts == sorted(counts, reverse=True)
    page = browser.get("/operations", by="scattered", ns=NAMESPACE).text
    routes = [link for link in Tags(page).addresses("href") if link.startswith("/why?") and "total" in link]
    for command in ("find", "aggregate"):
        explained = browser.get(next(link for link in routes if command in link)).text
        assert "scattered to all 2 shards" in explained
        assert "stands for a value" in explained
    assert "total: { $gt: &#34;?&#34; }" in page
    assert browser.get("/api/query-shapes", by="nothing").status == 400


def test_a_band_leads_to_shapes_and_clients(browser: Browser, client: Client) -> None:
    for _ in range(3):
        assert client.shop.orders.count_documents({"total": {"$gte": 0}, "customer": {"$lt": 100}}) == 100
    before = client.admin.command({"profile": 0, "slowms": -1})
    try:
        assert client.shop.orders.find_one({"customer": 7})
    finally:
        client.admin.command({"profile": 0, "slowms": before["slowms"]})
    (href,) = [
        each for each in Tags(browser.get("/collection", ns=NAMESPACE).text).addresses("href") if "band=0" in each
    ]

    def page() -> str | None:
        text = browser.get(href).text
        return text if "127.0.0.1" in text and "Frequent operations on the collection" in text else None

    assert "customer: &#34;?&#34;" in until(page)


def test_rates_come_from_the_metrics(browser: Browser, client: Client) -> None:
    def busy() -> Any:  # noqa: ANN401 - rows
        for number in range(20):
            client.shop.orders.find_one({"customer": number})
        rows = {each["command"]: each["rate"] for each in browser.api("operations")["commands"]}
        return rows.get("find")

    assert until(busy) > 0
    assert browser.api("operations")["history"]["at"]
