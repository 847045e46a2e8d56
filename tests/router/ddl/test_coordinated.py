"""The request for the shard that coordinates a DDL operation."""

from typing import Any

import bson

from shardwright.router.ddl.coordinated import coordinated_command
from shardwright.wire.message import OpMsg, op_msg
from shardwright.wire.request import Request


def request(**command: Any) -> Request:  # noqa: ANN401 - any BSON value
    return Request(OpMsg(op_msg(bson.encode(command), request_id=1)))


def test_arguments_of_the_command_are_kept_and_those_of_running_it_are_not() -> None:
    asked = request(
        **{
            "collMod": "c",
            "validator": {"a": 1},
            "lsid": {"id": 1},
            "writeConcern": {"w": 1},
            "maxTimeMS": 10,
            "validationLevel": "off",
            "$readPreference": {"mode": "primary"},
            "$db": "s",
        }
    )
    body = bson.decode(coordinated_command(asked, "_shardsvrCollMod"))
    assert list(body.items()) == [
        ("_shardsvrCollMod", "c"),
        ("validator", {"a": 1}),
        ("validationLevel", "off"),
        ("writeConcern", {"w": "majority", "wtimeout": 60_000}),
        ("$db", "s"),
    ]
