"""Predicted shards are the contacted ones, and the reasons fit."""

from typing import Any

import pytest

from shardwright.console.api import ENDPOINTS
from tests.console.browser import Browser

FIELDS = next(each for each in ENDPOINTS if each.path == "explain").returns.keys()


def explain(browser: Browser, text: str) -> dict[str, Any]:
    answer = browser.post("/api/explain", text=text, db="shop")
    assert answer.status == 200, answer.text
    assert answer.document.keys() == FIELDS
    return answer.document


@pytest.mark.parametrize(
    ("text", "shards", "chunks"),
    [
        ("db.orders.find({ customer: 150 })", ["shard1"], 1),
        ("db.orders.find({ customer: { $gte: 100, $lt: 200 } })", ["shard1"], 1),
        ("db.orders.find({ customer: { $gt: 50, $lt: 150 } })", ["shard0", "shard1"], 2),
        ("db.orders.find({ customer: { $in: [5, 350] } })", ["shard0"], 2),
        ("db.orders.find({ total: 4 })", ["shard0", "shard1"], 4),
        ("db.orders.aggregate([{ $match: { customer: 7 } }, { $count: 'n' }])", ["shard0"], 1),
        ("db.orders.aggregate([{ $group: { _id: null, n: { $sum: 1 } } }])", ["shard0", "shard1"], 4),
        ("db.orders.deleteOne({ customer: 150 })", ["shard1"], 1),
        ("db.orders.updateOne({ customer: 3 }, { $set: { total: 0 } })", ["shard0"], 1),
        ("db.orders.countDocuments({ customer: 399 })", ["shard0"], 1),
        ("db.orders.distinct('total', { customer: 150 })", ["shard1"], 1),
    ],
)
def test_predicted_is_contacted(browser: Browser, text: str, shards: list[str], chunks: int) -> None:
    found = explain(browser, text)
    assert found["isSharded"]
    assert found["shards"] == shards
    assert found["predictedShards"] == shards
    assert (found["chunkCount"], found["chunksOfAll"]) == (chunks, 4)
    assert bool(found["advice"]) == (len(shards) > 1)


def test_a_hashed_key_is_targeted_by_equality_alone(browser: Browser) -> None:
    assert len(explain(browser, "db.events.find({ device: 7 })")["shards"]) == 1
    spread = explain(browser, "db.events.find({ device: { $gt: 7 } })")
    assert len(spread["shards"]) == 2
    assert "hashed" in spread["advice"][0]


def test_a_collection_that_is_not_sharded(browser: Browser) -> None:
    found = explain(browser, "db.plain.find({ a: 1 })")
    assert not found["isSharded"]
    assert "primary shard" in found["reasons"][0]


def test_the_page_shows_the_steps(browser: Browser) -> None:
    text = browser.post("/why", text="db.orders.find({ customer: 150 })", db="shop").text
    assert "one shard" in text
    assert "1 of 4 chunks can match" in text
    assert browser.post("/why", text="db.orders.find({", db="shop").status == 400
