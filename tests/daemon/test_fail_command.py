"""The fail point ``failCommand``: which commands it affects, and how."""

from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest
from bson import Int64, ObjectId, decode, encode
from bson.decimal128 import Decimal128
from bson.timestamp import Timestamp
from pymongo import MongoClient
from pymongo.errors import OperationFailure

from shardwright.daemon.fail_command import (
    CommandCall,
    FailCommandCloseError,
    FailCommandError,
    block_seconds,
    fails_after,
    fails_before,
    raise_failure,
    reply_with_error,
)
from shardwright.daemon.fail_points import parse_mode
from shardwright.wire.errors import CommandError
from tests.sharding.conftest import throw_away_mongod

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
    executed = encode({"n": 1, "writeConcernError": {"code": 64}, "ok": 1.0, "$clusterTime": 5})
    assert list(decode(reply_with_error(data, executed)).items()) == [
        ("n", 1),
        ("writeConcernError", {"code": 91, "errmsg": "e"}),
        ("ok", 1.0),
        ("$clusterTime", 5),
        ("errorLabels", ["L"]),
    ]
    assert decode(reply_with_error({"writeConcernError": [1]}, encode({"ok": 1.0}))) == {
        "writeConcernError": [1],
        "ok": 1.0,
    }


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
        reply_with_error({"writeConcernError": 5}, encode({"ok": 1.0}))
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
        (
            {"errorCode": 11000, "errorExtraInfo": {"keyPattern": {"a": 1}, "keyValue": [2], "x": 1}},
            11000,
            {"keyPattern": {"a": 1}, "keyValue": {"0": 2}},
        ),
        ({"errorCode": 2, "errorExtraInfo": {"a": 1}}, 2, {}),
        ({"errorCode": 91}, 91, {}),
        ({"errorCode": 91, "errorExtraInfo": {"a": 1}}, 91, {"remainingQuiesceTimeMillis": 0}),
        ({"errorCode": 150, "errorExtraInfo": {"ns": "d.c", "vReceived": 5}}, 150, {"ns": "d.c"}),
        ({"errorCode": 2, "errorExtraInfo": None}, 14, {}),
    ],
)
def test_extra_information_of_errors(data: dict[str, Any], code: int, extra: dict[str, Any]) -> None:
    with pytest.raises(CommandError) as error:
        raise_failure(data)
    assert (error.value.code, error.value.extra) == (code, extra)


_REFUSED: list[tuple[int, dict[str, Any]]] = [
    (65, {}),
    (121, {}),
    (121, {"errInfo": [1]}),
    (169, {}),
    (169, {"resolvedView": {}}),
    (236, {}),
    (249, {}),
    (249, {"vReceived": {}}),
    (249, {"vReceived": {"timestamp": Timestamp(1, 1), "lastMod": 1}}),
    (249, {"db": "d", "vReceived": {"timestamp": Timestamp(1, 1), "lastMod": 1, "uuid": 5}}),
    (271, {}),
    (271, {"stack": "s", "originalError": {}}),
    (271, {"stack": "s", "originalError": {"code": 1, "errmsg": 5}}),
    (283, {"preImage": {}, "postImage": {}, "shouldUpsert": 5}),
    (284, {}),
    (304, {"nss": None}),
    (320, {}),
    (343, {}),
    (346, {}),
    (348, {"topologyChangeEvent": "x"}),
    (351, {}),
    (353, {"tenantId": 5}),
    (356, {"txnRetryCounter": Int64(1)}),
    (359, {"violations": 5}),
    (11000, {"keyPattern": 5, "keyValue": {}}),
    (11000, {"keyPattern": {}}),
    (13388, {}),
    (13388, {"ns": 5, "shardId": ""}),
    (13388, {"ns": "d.c", "shardId": "s"}),
    (13388, {"ns": "d.c", "shardId": "s", "vReceived": 5}),
    (13388, {"ns": "d.c", "shardId": "s", "vReceived": {"t": Timestamp(1, 1)}}),
    (13388, {"ns": "d.c", "shardId": "s", "vReceived": {"t": 1}}),
]
_VERSION = {"t": Timestamp(1, 1), "e": ObjectId(b"o" * 12), "v": Timestamp(1, 0)}
_ACCEPTED: list[tuple[int, dict[str, Any]]] = [
    (91, {}),
    (91, {"remainingQuiesceTimeMillis": 5.7}),
    (91, {"remainingQuiesceTimeMillis": Decimal128("8.5")}),
    (91, {"remainingQuiesceTimeMillis": True}),
    (121, {"errInfo": {"a": 1}}),
    (150, {"ns": 5}),
    (227, {"ns": "d.c", "x": 1}),
    (227, {}),
    (249, {"db": "d", "x": 1, "vReceived": {"timestamp": Timestamp(1, 1), "lastMod": 1, "x": 1}}),
    (271, {"stack": "s", "originalError": {"code": 91, "errmsg": "x"}}),
    (283, {"preImage": [1], "postImage": {}, "shouldUpsert": True, "x": 1}),
    (304, {"nss": "d.c"}),
    (320, {"tenantId": "t", "migrationId": 5}),
    (346, {"invalidateToken": {"a": 1}}),
    (351, {"startAfterInvalidateEvent": {"a": 1}}),
    (356, {"txnRetryCounter": 1}),
    (359, {"violations": {"a": 1}}),
    (11000, {"keyPattern": [1], "keyValue": {}, "foundValue": 1, "x": 1}),
    (13388, {"ns": "d.c", "shardId": "s", "vReceived": {**_VERSION, "x": 1}, "vWanted": Timestamp(1, 0)}),
]


@pytest.fixture(scope="module")
def mongod(mongod_binary: str) -> Iterator[MongoClient[dict[str, Any]]]:
    with throw_away_mongod(mongod_binary, "--setParameter", "enableTestCommands=1") as client:
        yield client


@pytest.mark.parametrize(
    ("code", "extra", "is_accepted"),
    [*((*each, False) for each in _REFUSED), *((*each, True) for each in _ACCEPTED)],
    ids=str,
)
def test_extra_information_is_parsed_as_by_a_mongod(
    mongod: MongoClient[dict[str, Any]], code: int, extra: dict[str, Any], is_accepted: bool
) -> None:
    data = {"failCommands": ["ping"], "errorCode": code, "errorExtraInfo": extra}
    mongod.admin.command("configureFailPoint", "failCommand", mode={"times": 1}, data=data)
    genuine = mongod.admin.command("ping", check=False)
    with pytest.raises(CommandError) as error:
        raise_failure(data)
    assert list(error.value.reply().items()) == list(genuine.items())
    assert (genuine["code"] == code) is is_accepted


_NUMBERS = [1, 1.0, 1.5, -1.5, -0.5, -1, 0, 2**31, 2**31 - 1, 1e20, -1e20, 1e-7, 0.1 + 0.2, 2.0**63, -(2.0**63), 1e16]
_TEXTS = ["1", "1.0", "2E+2", "1.5", "NaN", "-Infinity", "-1", "1E+20", "9223372036854775808", "1E-7", "0.10"]


@pytest.mark.parametrize("mode", ["times", "skip", "activationProbability"])
def test_numbers_of_modes_are_parsed_as_by_a_mongod(mongod: MongoClient[dict[str, Any]], mode: str) -> None:
    others = [float("nan"), float("inf"), True, None, "x", Int64(2**60 + 1), 4 / 3, 1.1, 123456789.5, 1.00000001]
    for number in [*_NUMBERS, *map(Decimal128, _TEXTS), *others]:
        try:
            mongod.admin.command("configureFailPoint", "failCommand", mode={mode: number})
            genuine = None
        except OperationFailure as failure:
            genuine = (failure.code, (failure.details or {})["errmsg"])
        try:
            parse_mode({mode: number}, lambda: None, count().__next__)
            found = None
        except CommandError as error:
            found = (error.code, error.message)
        assert found == genuine, number
