"""Counts of operations by shape: what is one shape, the bound, and the sum over processes."""

from collections.abc import Iterable
from typing import Any

import bson
import pytest
from bson import Int64

from shardwright.router.context.parameters import Parameters
from shardwright.router.context.query_shapes import QueryShapes, merged_documents
from shardwright.wire.message import OpMsg, encode_sequence, op_msg
from shardwright.wire.request import Request
from shardwright.wire.tls import ProcessTls
from shardwright.wire.transport.cluster_auth import ClusterAuth


def request(command: dict[str, Any], sections: bytes = b"", *, db: str = "shop") -> Request:
    return Request(OpMsg(op_msg(bson.encode({**command, "$db": db}), request_id=1, sections=sections)))


def find(query: dict[str, Any], **more: Any) -> Request:  # noqa: ANN401 - any field of a command
    return request({"find": "orders", "filter": query, **more})


def counted(shapes: QueryShapes, *requests: Request, targeted: tuple[str, ...] = ("east",), times: int = 1) -> None:
    for _ in range(times):
        for each in requests:
            shapes.observe(each, 0.002, targeted, 100, 3, is_error=False)


def counts(shapes: QueryShapes) -> list[int]:
    return [each["metrics"]["execCount"] for each in shapes.documents()]


@pytest.fixture
def parameters() -> Parameters:
    return Parameters(ClusterAuth(ProcessTls()), {})


@pytest.fixture
def shapes(parameters: Parameters) -> QueryShapes:
    return QueryShapes(parameters)


def test_operations_that_differ_in_values_are_one_shape(shapes: QueryShapes) -> None:
    counted(shapes, *(find({"key": key, "name": name}) for key in (1, 2, 2.5, "x") for name in ("a", "b", "longer")))
    counted(shapes, *(find({"key": 1, "name": "a"}, limit=limit, comment="c" * limit) for limit in (1, 2)))
    [document] = shapes.documents()
    assert document["key"]["queryShape"] == {
        "cmdNs": {"db": "shop", "coll": "orders"},
        "command": "find",
        "filter": {"key": "?", "name": "?"},
    }
    assert document["metrics"]["execCount"] == 14


def test_command_collection_and_arguments_make_a_shape(shapes: QueryShapes) -> None:
    for _ in range(3):
        counted(
            shapes,
            find({"a": 1}),
            find({"b": 1}),
            find({"a": {"$gt": 1}}),
            find({"a": 1}, sort={"a": 1}),
            find({"a": 1}, sort={"a": -1}),
            request({"find": "other", "filter": {"a": 1}}),
            request({"find": "orders", "filter": {"a": 1}}, db="two"),
            request({"count": "orders", "query": {"a": 1}}),
        )
    assert counts(shapes) == [3] * 8


def test_a_write_has_the_shape_of_its_first_statement(shapes: QueryShapes) -> None:
    statements: list[dict[str, Any]] = [{"q": {"a": 1}, "u": {"$set": {"b": 2}}}, {"q": {"c": 1}, "u": {}}]
    sections = encode_sequence(b"updates", [bson.encode(each) for each in statements])
    counted(shapes, request({"update": "orders", "updates": statements[:1]}))
    counted(shapes, request({"update": "orders"}, sections))
    [document] = shapes.documents()
    assert document["metrics"]["execCount"] == 2


def test_scattered_failed_and_unsent_operations_are_told_apart(shapes: QueryShapes) -> None:
    each = find({"a": 1})
    counted(shapes, each)
    counted(shapes, each, targeted=("east", "west", "south"))
    counted(shapes, each, targeted=("east", "east"))
    shapes.observe(each, 0.5, (), 0, 0, is_error=True)
    [document] = shapes.documents()
    metrics = document["metrics"]
    assert [metrics[name] for name in ("execCount", "errorCount", "targetedCount", "scatteredCount")] == [4, 1, 2, 1]
    assert metrics["shardsTargeted"] == {"sum": 5}
    assert metrics["bytesReturned"] == {"sum": 300}
    assert metrics["docsReturned"] == {"sum": 9}
    assert metrics["totalExecMicros"] == {"sum": 506_000}
    assert [(each["micros"], each["count"]) for each in metrics["histogram"] if each["count"]] == [
        (1_000, 3),
        (250_000, 1),
    ]


def test_internal_databases_are_not_counted(shapes: QueryShapes) -> None:
    for db in ("admin", "config", "local"):
        counted(shapes, request({"find": "c", "filter": {}}, db=db))
    assert shapes.documents() == []


def test_malformed_and_long_arguments_are_counted_by_the_command_alone(shapes: QueryShapes) -> None:
    counted(shapes, *(find({"a": {"$in": list(range(size))}}) for size in (2_000, 3_000)))
    counted(shapes, request({"update": "orders", "updates": 5}))
    shown = [each["key"]["queryShape"] for each in shapes.documents()]
    assert {"cmdNs": {"db": "shop", "coll": "orders"}, "command": "find"} in shown
    assert {"cmdNs": {"db": "shop", "coll": "orders"}, "command": "update"} in shown


def test_empty_text_is_counted(shapes: QueryShapes) -> None:
    counted(
        shapes,
        request({"aggregate": "orders", "pipeline": [{"$set": {"a": {"$ifNull": ["$a", ""]}}}]}),
        request({"update": "orders", "updates": [{"q": {"a": ""}, "u": [{"$set": {"a": ""}}]}]}),
        find({"a": ""}, hint=""),
        times=2,
    )
    assert counts(shapes) == [2, 2, 2]


class TestBound:
    def test_the_least_used_shapes_make_room(self, parameters: Parameters, shapes: QueryShapes) -> None:
        parameters.set("queryStatsShapesMax", 10)
        counted(shapes, find({"often": 1}), times=50)
        for tens in range(10):
            counted(shapes, find({"often": 1}), *(find({f"rare{tens}{number}": 1}) for number in range(10)))
        *kept, others = shapes.documents()
        assert len(kept) <= 10
        assert kept[0]["key"]["queryShape"]["filter"] == {"often": "?"}
        assert kept[0]["metrics"]["execCount"] == 60
        assert others["key"] == {"others": True}
        assert others["evicted"] == 101 - len(kept)
        assert sum(counts(shapes)) == 160

    def test_shapes_of_the_past_make_room_for_present_ones(self, parameters: Parameters, shapes: QueryShapes) -> None:
        parameters.set("queryStatsShapesMax", 5)
        counted(shapes, *(find({f"past{number}": 1}) for number in range(5)), times=100)
        for number in range(100):
            counted(shapes, find({f"rare{number}": 1}))
            counted(shapes, find({"present": 1}), times=3)
        filters = [each["key"]["queryShape"]["filter"] for each in shapes.documents()[:-1]]
        assert {"present": "?"} in filters
        assert not any(name.startswith("past") for each in filters for name in each)

    def test_counts_that_made_room_begin_again(self, parameters: Parameters, shapes: QueryShapes) -> None:
        held = shapes.of(find({"held": 1}))
        assert held is not None
        held.observe(0.001)
        parameters.set("queryStatsShapesMax", 1)
        counted(shapes, find({"another": 1}))
        assert not held.is_kept
        assert shapes.kept_again(held) is held
        held.observe(0.001)
        shown, others = shapes.documents()
        assert shown["key"]["queryShape"]["filter"] == {"held": "?"}
        assert (shown["metrics"]["execCount"], others["metrics"]["execCount"]) == (1, 2)

    def test_the_same_shape_is_kept_once(self, parameters: Parameters, shapes: QueryShapes) -> None:
        held = shapes.of(find({"held": 1}))
        assert held is not None
        parameters.set("queryStatsShapesMax", 1)
        counted(shapes, find({"another": 1}), find({"held": "text"}), find({"held": "other"}))
        again = shapes.of(find({"held": 1}))
        assert again is not None
        assert again.count == 2
        assert shapes.kept_again(held) is again or held is again

    def test_zero_turns_them_off(self, parameters: Parameters, shapes: QueryShapes) -> None:
        counted(shapes, find({"a": 1}))
        parameters.set("queryStatsShapesMax", 0)
        counted(shapes, find({"a": 1}))
        assert shapes.of(find({"a": 1})) is None
        assert shapes.documents() == []
        parameters.set("queryStatsShapesMax", 5)
        counted(shapes, find({"a": 1}))
        assert counts(shapes) == [1]

    def test_many_layouts_are_counted_right(self, shapes: QueryShapes) -> None:
        counted(shapes, *(find({"a": "x" * size}) for size in range(1_500)), times=2)
        counted(shapes, *(find({"a": [Int64(1)] * size}) for size in range(1, 60)), times=2)
        assert counts(shapes) == [3_000, 118]


def documents(of: Iterable[Request]) -> list[dict[str, Any]]:
    shapes = QueryShapes(Parameters(ClusterAuth(ProcessTls()), {"queryStatsShapesMax": "2"}))
    counted(shapes, *of)
    return [bson.decode(bson.encode(each)) for each in shapes.documents()]


def test_processes_are_added_up_by_shape() -> None:
    first = documents([find({"a": 1}), find({"b": 1}), find({"c": 1})])
    second = documents([find({"a": 5}), find({"c": 1}), find({"c": 2}), find({"d": 1})])
    *merged, others = merged_documents([first, second])
    by_name = {next(iter(each["key"]["queryShape"]["filter"])): each["metrics"] for each in merged}
    assert sum(each["execCount"] for each in by_name.values()) + others["metrics"]["execCount"] == 7
    assert others["evicted"] == 2
    assert by_name["c"]["execCount"] == 3
    assert by_name["c"]["bytesReturned"] == {"sum": 300}
    assert by_name["c"]["docsReturned"] == {"sum": 9}
    assert sum(each["count"] for each in by_name["c"]["histogram"]) == 3
    assert by_name["c"]["histogram"][1]["micros"] == first[0]["metrics"]["histogram"][1]["micros"]


def test_processes_without_evicted_shapes_have_no_others() -> None:
    assert [each["metrics"]["execCount"] for each in merged_documents([documents([find({"a": 1})])] * 2)] == [2]
