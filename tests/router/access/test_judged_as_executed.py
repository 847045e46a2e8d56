"""Privileges for a command whose arguments could be read in two ways."""

from typing import Any

import bson
import pytest
from bson.decimal128 import Decimal128

from shardwright.daemon.users import Resource
from shardwright.router.access.command_needs import TABLE
from shardwright.router.access.needs import Need
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.message import OpMsg, op_msg
from shardwright.wire.request import Request


def needs(command: dict[str, Any]) -> set[tuple[str, Resource]]:
    """The actions that a command on the database ``shop`` needs, and on what."""
    request = Request(OpMsg(op_msg(bson.encode({**command, "$db": "shop"}), request_id=1)))
    return {(each.action, each.resource) for each in TABLE[request.name](request) if isinstance(each, Need)}


@pytest.mark.parametrize(
    ("remove", "actions"),
    [
        (True, {"find", "remove"}),
        (1, {"find", "remove"}),
        (False, {"find", "update"}),
        (None, {"find", "update"}),
        (Decimal128("0"), {"find", "remove", "update"}),
        (float("nan"), {"find", "remove", "update"}),
    ],
    ids=["true", "one", "false", "null", "decimal", "nan"],
)
def test_find_and_modify_needs_what_it_may_do(remove: object, actions: set[str]) -> None:
    command = {"findAndModify": "goods", "remove": remove, "update": {"a": 1}}
    assert needs(command) == {(action, Resource("shop", "goods")) for action in actions}


def test_split_vector_is_about_the_collection_that_it_names_in_full() -> None:
    assert needs({"splitVector": "admin.system.users"}) == {("splitVector", Resource("admin", "system.users"))}


@pytest.mark.parametrize("bypasses", [True, False, Decimal128("0")], ids=str)
@pytest.mark.parametrize(
    "command",
    [
        {"aggregate": "goods", "pipeline": [{"$out": "target"}]},
        {"aggregate": "goods", "pipeline": [{"$merge": {"into": "target"}}]},
        {"mapReduce": "goods", "map": "", "reduce": "", "out": {"merge": "target"}},
    ],
    ids=["out", "merge", "mapReduce"],
)
def test_targets_may_be_written_without_validation_by_those_who_may_bypass_it(
    command: dict[str, Any], bypasses: object
) -> None:
    bypassing = ("bypassDocumentValidation", Resource("shop", "target"))
    wanted = needs({**command, "bypassDocumentValidation": bypasses})
    assert (bypassing in wanted) == (bypasses is not False)
    explained = needs({"explain": {**command, "bypassDocumentValidation": bypasses}})
    assert (bypassing in explained) == (bypasses is not False)


def test_a_database_that_is_null_is_that_of_the_command() -> None:
    merge = {"$merge": {"into": {"db": None, "coll": "target"}}}
    wanted = needs({"aggregate": "goods", "pipeline": [merge]})
    assert ("insert", Resource("shop", "target")) in wanted


@pytest.mark.parametrize("db", [5, Decimal128("1"), ["shop"]], ids=str)
def test_a_database_that_is_no_name_is_refused(db: object) -> None:
    target = {"db": db, "coll": "target"}
    for stage, code in (
        ({"$merge": {"into": target}}, ErrorCode.TypeMismatch),
        ({"$out": target}, 13111),
        ({"$lookup": {"from": target, "pipeline": [], "as": "x"}}, ErrorCode.Unauthorized),
    ):
        with pytest.raises(CommandError) as refused:
            needs({"aggregate": "goods", "pipeline": [stage]})
        assert refused.value.code == code
