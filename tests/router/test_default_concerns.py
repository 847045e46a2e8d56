"""The cluster's default read and write concern in the requests that the router sends to shards."""

from typing import Any

import bson
import pytest

from shardwright.router.commands.router_commands import ROUTER_COMMANDS
from shardwright.router.context.default_concerns import DefaultConcerns
from shardwright.router.generic_arguments import with_default_concerns
from shardwright.wire.message import OpMsg, encode_sequence, op_msg
from shardwright.wire.request import Request

IMPLICIT: dict[str, Any] = {
    "defaultReadConcern": {"level": "local"},
    "defaultReadConcernSource": "implicit",
    "defaultWriteConcern": {"w": "majority", "wtimeout": 0},
    "defaultWriteConcernSource": "implicit",
}
BOTH: dict[str, Any] = {
    "defaultReadConcern": {"level": "majority"},
    "defaultReadConcernSource": "global",
    "defaultWriteConcern": {"w": 1, "wtimeout": 0},
    "defaultWriteConcernSource": "global",
}


def added(report: dict[str, Any], command: dict[str, Any]) -> dict[str, Any]:
    """Return the fields that the defaults add to a request."""
    defaults = DefaultConcerns()
    defaults.take(report)
    request = Request(OpMsg(op_msg(bson.encode({**command, "$db": "d"}), request_id=7)))
    name = next(iter(command))
    applied = with_default_concerns(defaults, ROUTER_COMMANDS[name], request)
    assert applied.message.request_id == 7
    return {field: value for field, value in applied.document.items() if value != command.get(field) and field != "$db"}


@pytest.mark.parametrize("command", [{"find": "c"}, {"insert": "c"}])
def test_implicit_defaults_are_not_sent(command: dict[str, Any]) -> None:
    assert added(IMPLICIT, command) == {}


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ({"find": "c"}, {"readConcern": {"level": "majority"}}),
        ({"aggregate": "c"}, {"readConcern": {"level": "majority"}}),
        ({"aggregate": "c", "pipeline": []}, {"readConcern": {"level": "majority"}}),
        ({"aggregate": "c", "pipeline": [{"$match": {}}]}, {"readConcern": {"level": "majority"}}),
        ({"aggregate": "c", "pipeline": [{}, 5]}, {"readConcern": {"level": "majority"}}),
        ({"aggregate": "c", "pipeline": [5]}, {"readConcern": {"level": "majority"}}),
        ({"aggregate": "c", "pipeline": [], "explain": True}, {}),
        ({"aggregate": "c", "pipeline": [{"$changeStream": {}}]}, {}),
        ({"aggregate": 1, "pipeline": [{"$currentOp": {}}]}, {}),
        ({"find": "c", "readConcern": {"level": "local"}}, {}),
        ({"insert": "c"}, {"writeConcern": {"w": 1, "wtimeout": 0}}),
        ({"findAndModify": "c"}, {"writeConcern": {"w": 1, "wtimeout": 0}}),
        ({"insert": "c", "writeConcern": {"w": 2}}, {}),
        ({"insert": "c", "writeConcern": {"wtimeout": 5}}, {}),
        ({"insert": "c", "writeConcern": {}}, {"writeConcern": {"w": 1, "wtimeout": 0}}),
        ({"find": "c", "readConcern": {}}, {"readConcern": {"level": "majority"}}),
        ({"find": "c", "readConcern": 5}, {}),
        (
            {"aggregate": "c", "pipeline": [{"$match": {}}, {"$merge": "d"}]},
            {"readConcern": {"level": "majority"}, "writeConcern": {"w": 1, "wtimeout": 0}},
        ),
        (
            {"aggregate": "c", "pipeline": [{"$out": "d"}], "writeConcern": {"w": 2}},
            {"readConcern": {"level": "majority"}},
        ),
        ({"aggregate": "c", "pipeline": [{"$out": "d"}], "explain": True}, {}),
        ({"mapReduce": "c", "out": "d"}, {"writeConcern": {"w": 1, "wtimeout": 0}}),
        ({"mapReduce": "c", "out": {"merge": "d"}}, {"writeConcern": {"w": 1, "wtimeout": 0}}),
        ({"mapReduce": "c", "out": {"inline": 1}}, {}),
        ({"ping": 1}, {}),
    ],
    ids=str,
)
def test_defaults_that_were_set(command: dict[str, Any], expected: dict[str, Any]) -> None:
    assert added(BOTH, command) == expected


def test_document_sequences_are_kept() -> None:
    defaults = DefaultConcerns()
    defaults.take(BOTH)
    documents = [bson.encode({"_id": 1}), bson.encode({"_id": 2})]
    body = bson.encode({"insert": "c", "$db": "d"})
    frame = op_msg(body, request_id=1, sections=encode_sequence(b"documents", documents))
    applied = with_default_concerns(defaults, ROUTER_COMMANDS["insert"], Request(OpMsg(frame)))
    assert applied.documents(b"documents") == documents


def test_defaults_are_none_before_the_first_report() -> None:
    assert not DefaultConcerns().is_any_set


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ({"find": "c", "startTransaction": True}, {"readConcern": {"level": "majority"}}),
        ({"find": "c", "startTransaction": True, "readConcern": {}}, {"readConcern": {"level": "majority"}}),
        ({"insert": "c"}, {}),
        ({"commitTransaction": 1}, {"writeConcern": {"w": 1, "wtimeout": 0}}),
        ({"commitTransaction": 1, "writeConcern": {}}, {"writeConcern": {"w": 1, "wtimeout": 0}}),
        ({"commitTransaction": 1, "writeConcern": {"w": 2}}, {}),
    ],
    ids=str,
)
def test_defaults_in_a_transaction(command: dict[str, Any], expected: dict[str, Any]) -> None:
    assert added(BOTH, {**command, "autocommit": False}) == expected
