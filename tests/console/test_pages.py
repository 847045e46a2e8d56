"""Every page renders on a real cluster, and loads nothing from elsewhere."""

import io
import re
import tarfile
from typing import Final

import pytest

from shardwright.console.pages import PAGES
from tests.console.browser import Browser, Tags
from tests.console.conftest import NAMESPACE
from tests.local_cluster import RunningCluster

QUERIES: Final[dict[str, dict[str, object]]] = {
    "/collection": {"ns": NAMESPACE},
    "/chunks": {"ns": NAMESPACE, "measure": 1},
    "/security": {"check": 1},
    "/act": {"action": "balancer-start"},
}

HTML: Final = [each.path for each in PAGES if each.path != "/support-bundle"]


@pytest.mark.parametrize("path", HTML)
def test_a_page_renders_and_loads_nothing_from_elsewhere(browser: Browser, path: str) -> None:
    answer = browser.get(path, **QUERIES.get(path, {}))
    assert answer.status == 200, answer.text
    tags = Tags(answer.text)
    assert tags.inline_scripts == 0
    assert [each for each in tags.addresses() if not each.startswith(("/", "#"))] == []
    assert [each for each in tags.found if "style" in each[1] or any(name.startswith("on") for name in each[1])] == []
    policy = answer.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'")
    assert "unsafe" not in policy
    assert answer.headers["cache-control"] == "no-store"


@pytest.mark.parametrize("path", HTML)
def test_a_page_has_one_heading_and_a_name_for_each_field(browser: Browser, path: str) -> None:
    text = browser.get(path, **QUERIES.get(path, {})).text
    tags = Tags(text)
    assert [tag for tag, _ in tags.found].count("h1") == 1
    labelled = {attributes.get("for") for tag, attributes in tags.found if tag == "label"}
    for tag, attributes in tags.found:
        if tag in ("input", "select", "textarea") and attributes.get("type") != "hidden":
            assert attributes.get("aria-label") or attributes.get("id") in labelled, attributes
    assert all(attributes.get("alt") is not None for tag, attributes in tags.found if tag == "img")


def test_assets_are_served(browser: Browser) -> None:
    tags = Tags(browser.get("/").text)
    assets = [each for each in tags.addresses() if each.startswith("/static/")]
    assert len(assets) >= 6
    for each in assets:
        answer = browser.get(each)
        assert answer.status == 200
        assert not re.search(rb"https?://(?!www\.w3\.org|github\.com|localhost)[a-z]", answer.body.split(b"*/", 1)[-1])


@pytest.mark.parametrize("colour", ["shard", "size", "zone", "age", "jumbo", "nonsense"])
def test_the_chunk_map_has_a_band_for_each_chunk(browser: Browser, colour: str) -> None:
    text = browser.get("/collection", ns=NAMESPACE, colour=colour).text
    assert text.count('class="band"') == 4


def test_the_slider_undoes_moves(browser: Browser) -> None:
    now = browser.api("chunk-map", ns=NAMESPACE)
    before = browser.api("chunk-map", ns=NAMESPACE, back=1)
    assert now["moves"] == 1
    assert [list(band["shards"]) for band in now["bands"]].count(["shard1"]) == 1
    assert {shard for band in before["bands"] for shard in band["shards"]} == {"shard0"}
    assert "before" in browser.get("/collection", ns=NAMESPACE, back=1).text


def test_moves_of_an_earlier_collection_of_the_name_are_not_undone(browser: Browser, cluster: RunningCluster) -> None:
    first, second = sorted(cluster.shards)
    namespace = "again.orders"
    with cluster.client() as client:
        client.admin.command("enableSharding", "again", primaryShard=first)
        for to, back in ((second, first), (second, None)):
            client.again.drop_collection("orders")
            client.admin.command("shardCollection", namespace, key={"a": 1})
            for shard in filter(None, (to, back)):
                client.admin.command("moveChunk", namespace, find={"a": 1}, to=shard)
        found = browser.api("chunk-map", ns=namespace)
        assert found["moves"] == 1
        before = browser.api("chunk-map", ns=namespace, back=9)
        assert {shard for band in before["bands"] for shard in band["shards"]} == {first}
        client.drop_database("again")


def test_a_hashed_key_has_a_ring(browser: Browser) -> None:
    assert 'class="ring"' in browser.get("/collection", ns="shop.events").text
    assert 'class="ring"' not in browser.get("/collection", ns=NAMESPACE).text


def test_an_unknown_collection_is_not_found(browser: Browser) -> None:
    answer = browser.get("/collection", ns="shop.nothing")
    assert answer.status == 404
    assert "not a sharded collection" in answer.text
    assert browser.get("/nothing").status == 404


def test_a_namespace_is_escaped(browser: Browser) -> None:
    answer = browser.get("/collection", ns="shop.<script>alert(1)</script>")
    assert "<script>alert" not in answer.text


@pytest.mark.parametrize("query", [{}, {"ns": NAMESPACE, "from": "nonsense"}, {"ns": NAMESPACE, "band": "x"}])
def test_bad_parameters_are_refused(browser: Browser, query: dict[str, object]) -> None:
    assert browser.get("/chunks", **query).status == 400
    assert browser.get("/api/chunks", **query).status == 400


def test_an_open_cluster_is_shown_under_local_names_only(browser: Browser) -> None:
    browser.host = "rebound.example:80"
    assert browser.get("/").status == 403
    assert browser.get("/api/overview").status == 403
    browser.host = "localhost:1234"
    assert browser.get("/").status == 200


def test_the_support_bundle_has_no_documents(browser: Browser) -> None:
    answer = browser.get("/support-bundle")
    assert answer.status == 200
    with tarfile.open(fileobj=io.BytesIO(answer.body)) as archive:
        names = archive.getnames()
        texts = [archive.extractfile(name).read() for name in names]  # type: ignore[union-attr]
    assert "shardwright-support/overview.json" in names
    assert all(b'"signature"' not in text and b'"total"' not in text for text in texts[:1])
