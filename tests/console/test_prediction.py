"""Predictions from a placement alone: rules, refusals, views, and pieces that are not refined."""

from typing import Any, Final

import pytest
from bson import MaxKey, MinKey

from shardwright.console.placements import Piece, Pieces
from shardwright.console.prediction import NotPredictable, Rule, View, Where, predict, request_of
from shardwright.wire.rawbson import encode_document
from tests.sharding.chunk_worlds import COLLECTION, chunk, key, table_of

TABLE: Final = table_of([chunk(MinKey(), 0, "a", 1, 0), chunk(0, 100, "b", 1, 1), chunk(100, MaxKey(), "a", 1, 2)])
CLUSTER: Final = frozenset({"a", "b", "empty"})
WHERE: Final = Where("a", CLUSTER, TABLE)
SET: Final = {"$set": {"y": 1}}


@pytest.mark.parametrize(
    ("command", "shards", "rule"),
    [
        ({"find": "c", "filter": {"x": 5}}, ["b"], Rule.FILTER),
        ({"find": "c", "filter": {"y": 5}}, ["a", "b"], Rule.FILTER),
        ({"count": "c", "query": None}, ["a", "b"], Rule.FILTER),
        ({"aggregate": "c", "pipeline": [{"$set": {"z": 1}}, {"$match": {"x": 5}}]}, ["b"], Rule.FILTER),
        ({"aggregate": "c", "pipeline": [{"$collStats": {}}]}, ["a", "b"], Rule.DESCRIBES),
        ({"insert": "c", "documents": [{"x": 5}, {"x": -5}]}, ["a", "b"], Rule.DOCUMENT),
        ({"update": "c", "updates": [{"q": {"x": 5}, "u": SET}]}, ["b"], Rule.FILTER),
        ({"update": "c", "updates": [{"q": {}, "u": SET, "multi": True}]}, ["a", "b", "empty"], Rule.ALL_SHARDS),
        ({"delete": "c", "deletes": [{"q": {"_id": 1}, "limit": 1}]}, ["a", "b", "empty"], Rule.ALL_SHARDS),
        ({"findAndModify": "c", "query": {"x": 5}, "remove": True}, ["b"], Rule.EXACT_KEY),
    ],
)
def test_rules(command: dict[str, Any], shards: list[str], rule: Rule) -> None:
    found = predict(request_of(command, "d"), WHERE)
    assert list(found.shards) == shards
    assert found.parts[0].rule is rule
    assert found.refusal is None


@pytest.mark.parametrize(
    ("command", "text", "shards"),
    [
        ({"findAndModify": "c", "query": {"y": 5}, "remove": True}, "must contain the shard key", []),
        ({"delete": "c", "deletes": [{"q": {"y": 5}, "limit": 1}]}, "A single delete", []),
        (
            {"update": "c", "updates": [{"q": {"x": 5}, "u": SET}, {"q": {}, "u": SET}, {"q": {"x": -5}, "u": SET}]},
            "A {multi:false} update",
            ["b"],
        ),
        ({"find": "c", "filter": 5}, "expected type 'object'", []),
    ],
)
def test_refusals(command: dict[str, Any], text: str, shards: list[str]) -> None:
    found = predict(request_of(command, "d"), WHERE)
    assert found.refusal is not None
    assert text in found.refusal.message
    assert list(found.shards) == shards


def test_an_unordered_write_continues_after_a_refusal() -> None:
    command = {"delete": "c", "deletes": [{"q": {}, "limit": 1}, {"q": {"x": 5}, "limit": 1}], "ordered": False}
    assert predict(request_of(command, "d"), WHERE).shards == ("b",)


def test_a_view_is_read_from_its_collection() -> None:
    where = Where("a", CLUSTER, TABLE, View("c", [encode_document({"$match": {"x": {"$gte": 0}}})]))
    assert predict(request_of({"find": "v", "filter": {"x": {"$lt": 50}}}, "d"), where).shards == ("b",)
    assert predict(request_of({"aggregate": "v", "pipeline": []}, "d"), where).shards == ("a", "b")


def test_what_is_not_sharded_is_on_the_primary_shard() -> None:
    found = predict(request_of({"find": "c"}, "d"), Where("a", CLUSTER))
    assert (found.shards, found.parts[0].rule) == (("a",), Rule.PRIMARY)


@pytest.mark.parametrize("command", [{"drop": "c"}, {}, {"getMore": 5}])
def test_other_commands_are_not_predicted(command: dict[str, Any]) -> None:
    with pytest.raises(NotPredictable):
        predict(request_of(command, "d"), WHERE)


def test_pieces_say_which_of_them_could_not_decide() -> None:
    def piece(low: object, high: object, *shards: str) -> Piece:
        return Piece(key(low), key(high), {"x": low}, {"x": high}, frozenset(shards), len(shards))

    pieces = Pieces(COLLECTION, [piece(MinKey(), 0, "a"), piece(0, 100, "a", "b"), piece(100, MaxKey(), "b")])
    where = Where("a", CLUSTER, pieces)
    assert predict(request_of({"find": "c", "filter": {"x": {"$lt": 50}}}, "d"), where).shards == ("a", "b")
    assert (pieces.touched, pieces.undecided) == ({0, 1}, {1})
    assert pieces.shard_for_key(key(200)) == "b"
