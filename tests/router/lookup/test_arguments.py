"""The arguments of the stages that the router joins."""

from typing import Any

import bson
import pytest
from bson.decimal128 import Decimal128
from bson.int64 import Int64

from shardwright.router.lookup.graph_lookup import Frontier, GraphLookup
from shardwright.router.lookup.lookup import Lookup
from shardwright.router.lookup.pipeline_input import BATCH_DOCUMENTS, chunks
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.rawbson import find

EQUALITY: dict[str, Any] = {"from": "c", "localField": "a", "foreignField": "b", "as": "r"}
GRAPH: dict[str, Any] = {
    "from": "c",
    "startWith": "$a",
    "connectFromField": "a",
    "connectToField": "b",
    "as": "r",
}


def lookup(**arguments: Any) -> Lookup:  # noqa: ANN401 - any BSON value
    """A parsed ``$lookup``."""
    return Lookup.parse(bson.encode(arguments))


def test_an_equality() -> None:
    parsed = lookup(**EQUALITY)
    assert parsed.equality == ("a", "b")
    assert (parsed.collection, parsed.into, parsed.stages, parsed.is_correlated) == ("c", "r", (), False)


@pytest.mark.parametrize(
    ("let", "pipeline", "is_correlated"),
    [
        ({"x": 1}, [{"$match": {"$expr": {"$eq": ["$a", "$$x"]}}}], True),
        ({"x": 1}, [{"$lookup": {"from": "d", "pipeline": [{"$set": {"y": "$$x.z"}}], "as": "s"}}], True),
        ({"x": 1}, [{"$match": {"a": 1}}], False),
        ({}, [{"$set": {"y": "$$ROOT"}}], False),
    ],
)
def test_a_pipeline_is_correlated_if_it_uses_a_variable(
    let: dict[str, Any], pipeline: list[dict[str, Any]], is_correlated: bool
) -> None:
    assert lookup(**{"from": "c", "let": let, "pipeline": pipeline, "as": "r"}).is_correlated is is_correlated


@pytest.mark.parametrize("depth", [2, 2.0, Int64(2), Decimal128("2")], ids=repr)
def test_a_depth_is_any_number(depth: Any) -> None:  # noqa: ANN401 - a number of any type
    assert GraphLookup.parse(bson.encode({**GRAPH, "maxDepth": depth})).depth_max == 2
    assert GraphLookup.parse(bson.encode(GRAPH)).depth_max is None


def test_a_collection_of_a_server_is_not_joined() -> None:
    with pytest.raises(CommandError) as failure:
        lookup(**{**EQUALITY, "from": {"db": "config", "coll": "cache.chunks.a.b"}})
    assert failure.value.code == ErrorCode.FailedToParse


def test_the_frontier_has_the_elements_of_arrays() -> None:
    frontier = Frontier()
    start = bson.encode({"start": [1, [2]]})
    frontier.add_start(start, find(start, b"start"))
    frontier.add(bson.encode({"a": [{"b": 3}, {"b": [4, 3]}, {}, 7]}), [b"a", b"b"])
    assert bson.decode(frontier.filter(b"to")) == {"to": {"$in": [1, [2], 3, 4], "$exists": True}}
    assert frontier
    assert not Frontier()


def test_chunks_are_bounded_in_number_and_bytes() -> None:
    assert [len(chunk) for chunk in chunks([bytes(10)] * (BATCH_DOCUMENTS + 1))] == [BATCH_DOCUMENTS, 1]
    assert [len(chunk) for chunk in chunks([bytes(5_000_000)] * 3)] == [1, 1, 1]
    assert list(chunks([])) == [[]]
