"""The fail point ``failCommand``: which commands it affects, and how."""

from typing import Any

import pytest
from bson.decimal128 import Decimal128

from shardwright.daemon.fail_command import (
    CommandCall,
    FailCommandCloseError,
    FailCommandError,
    block_seconds,
    fails_after,
    fails_before,
    raise_failure,
    reply_fields,
)
from shardwright.wire.errors import CommandError

FIND = CommandCall({"find"}, "d.c", "app", "conn7")


@pytest.mark.parametrize(
    ("data", "call", "expected"),
    [
        ({"failCommands": ["find"], "errorCode": 11}, FIND, True),
        ({"failCommands": ["find"]}, FIND, False),
        ({"failCommands": ["insert"], "errorCode": 11}, FIND, False),
        ({"failCommands": "find", "errorCode": 11}, FIND, False),
        ({"failCommands": ["find"], "errorCode": "x"}, FIND, False),
        ({"failCommands": ["find"], "closeConnection": True}, FIND, True),
        ({"failCommands": ["find"], "closeConnection": False}, FIND, False),
        ({"failCommands": ["find"], "blockConnection": True}, FIND, True),
        ({"failCommands": ["find"], "writeConcernError": {}}, FIND, False),
        ({"failCommands": ["find"], "errorCode": 9.5}, FIND, False),
        ({"failCommands": ["find"], "errorCode": float("nan")}, FIND, False),
        ({"failCommands": ["find"], "errorCode": Decimal128("91")}, FIND, True),
        ({"failCommands": ["find"], "errorCode": Decimal128("NaN")}, FIND, False),
        ({"failCommands": ["find"], "errorCode": 0}, FIND, True),
        ({"failAllCommands": True, "errorCode": 11}, FIND, True),
        ({"failAllCommands": 1, "errorCode": 11}, FIND, True),
        ({"failAllCommands": 0, "errorCode": 11}, FIND, True),
        ({"failAllCommands": None, "failCommands": ["insert"], "errorCode": 11}, FIND, True),
        ({"failCommands": ["find"], "errorCode": 11, "threadName": "conn7"}, FIND, True),
        ({"failCommands": ["find"], "errorCode": 11, "threadName": "conn8"}, FIND, False),
        ({"failAllCommands": True, "errorCode": 11}, CommandCall({"configureFailPoint"}, "admin", ""), False),
        ({"failCommands": ["ismaster"], "errorCode": 11}, CommandCall({"hello", "ismaster"}, "admin", ""), True),
        ({"failCommands": ["find"], "errorCode": 11, "namespace": "d.c"}, FIND, True),
        ({"failCommands": ["find"], "errorCode": 11, "namespace": "d.e"}, FIND, False),
        ({"failCommands": ["find"], "errorCode": 11, "appName": "app"}, FIND, True),
        ({"failCommands": ["find"], "errorCode": 11, "appName": "other"}, FIND, False),
        ({"failCommands": ["find"], "errorCode": 11, "appName": ""}, FIND, False),
        ({"failCommands": ["find"], "errorCode": 11, "appName": 5}, FIND, False),
        ({"failCommands": ["find"], "errorCode": 11, "appName": ""}, CommandCall({"find"}, "d.c", ""), True),
        ({"failCommands": ["find"], "errorCode": 11, "appName": None}, CommandCall({"find"}, "d.c", ""), True),
    ],
    ids=lambda value: "/".join(sorted(value.names)) if isinstance(value, CommandCall) else str(value),
)
def test_which_commands_fail(data: dict[str, Any], call: CommandCall, expected: bool) -> None:
    assert fails_before(data, call) is expected


def test_write_concern_error_comes_after_the_command() -> None:
    data = {"failCommands": ["find"], "writeConcernError": {"code": 91, "errmsg": "e"}, "errorLabels": ["L"]}
    assert fails_after(data, FIND)
    assert not fails_after({"failCommands": ["find"], "errorCode": 11}, FIND)
    assert reply_fields(data) == {"writeConcernError": {"code": 91, "errmsg": "e"}, "errorLabels": ["L"]}


def test_error_has_the_labels_that_are_asked_for() -> None:
    with pytest.raises(FailCommandError) as error:
        raise_failure({"errorCode": 91, "errorLabels": ["L"]})
    assert error.value.reply() == {
        "ok": 0.0,
        "errmsg": "Failing command via 'failCommand' failpoint",
        "code": 91,
        "codeName": "ShutdownInProgress",
        "errorLabels": ["L"],
    }


@pytest.mark.parametrize("code", [0, 2**40, Decimal128("0")])
def test_a_code_of_which_32_bits_are_0_is_no_error(code: object) -> None:
    raise_failure({"errorCode": code})


def test_what_is_not_a_document_is_refused() -> None:
    with pytest.raises(CommandError) as error:
        raise_failure({"errorCode": 91, "errorExtraInfo": 5})
    assert error.value.message == '"errorExtraInfo" had the wrong type. Expected object, found int'
    with pytest.raises(CommandError) as error:
        reply_fields({"writeConcernError": 5})
    assert error.value.code == 10065


def test_labels_of_another_type_do_not_count() -> None:
    with pytest.raises(FailCommandError) as error:
        raise_failure({"errorCode": 91, "errorLabels": "L"})
    assert not error.value.has_given_labels


def test_connection_is_closed_rather_than_the_error_returned() -> None:
    with pytest.raises(FailCommandCloseError):
        raise_failure({"errorCode": 91, "closeConnection": True})


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"blockConnection": True}, "must specify 'blockTimeMS' when 'blockConnection' is true"),
        ({"blockConnection": True, "blockTimeMS": 0.5}, "must specify 'blockTimeMS' when 'blockConnection' is true"),
        ({"blockConnection": True, "blockTimeMS": -1}, "'blockTimeMS' must be non-negative"),
    ],
)
def test_time_to_block_is_checked(data: dict[str, Any], message: str) -> None:
    with pytest.raises(CommandError) as error:
        block_seconds(data)
    assert (error.value.code_name, error.value.message) == ("InvalidOptions", message)


def test_time_to_block() -> None:
    assert block_seconds({"blockConnection": True, "blockTimeMS": 1500}) == 1.5
    assert block_seconds({"errorCode": 1}) == 0


@pytest.mark.parametrize(
    ("data", "code", "extra"),
    [
        ({"errorCode": 11000}, 40671, {}),
        ({"errorCode": 13388}, 40671, {}),
        ({"errorCode": 11000, "errorExtraInfo": {"keyValue": {"a": 1}}}, 11000, {"keyValue": {"a": 1}}),
        ({"errorCode": 2, "errorExtraInfo": {"a": 1}}, 2, {}),
        ({"errorCode": 91, "errorExtraInfo": {"a": 1}}, 91, {"a": 1}),
        ({"errorCode": 2, "errorExtraInfo": None}, 14, {}),
    ],
)
def test_extra_information_of_errors(data: dict[str, Any], code: int, extra: dict[str, Any]) -> None:
    with pytest.raises(CommandError) as error:
        raise_failure(data)
    assert (error.value.code, error.value.extra) == (code, extra)
