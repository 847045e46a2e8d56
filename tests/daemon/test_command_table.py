"""The table of commands: finding one, and what is common to all of them."""

from typing import Any

import bson
import pytest

from shardwright.daemon.command_table import Command, CommandTable
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.message import OpMsg, op_msg
from shardwright.wire.request import Request


async def count(request: Request) -> int:
    """Counts documents.

    More is not shown.
    """
    return len(request.fields)


async def silent(request: Request) -> int:
    return len(request.fields)


COUNT = Command("count", count, aliases=("Count",), arguments=("query",))

TABLE = CommandTable((COUNT, Command("stop", silent, admin_only=True)))


def request_of(command: dict[str, Any], db: str = "d") -> Request:
    return Request(OpMsg(op_msg(bson.encode({**command, "$db": db}), request_id=1)))


@pytest.mark.parametrize("name", ["count", "Count"])
def test_a_command_is_found_by_name_and_alias(name: str) -> None:
    assert TABLE.find(name) is TABLE[name] is COUNT
    assert name in TABLE


def test_an_unknown_command_is_not_found() -> None:
    assert TABLE.find("COUNT") is None
    assert "COUNT" not in TABLE


def test_a_command_is_listed_once_in_the_order_of_the_table() -> None:
    assert TABLE.names == ("count", "stop")
    assert [each.name for each in TABLE.where(lambda each: each.admin_only)] == ["stop"]


@pytest.mark.parametrize("name", ["count", "Count"])
def test_a_name_has_one_command(name: str) -> None:
    for other in (Command(name, count), Command("other", count, aliases=(name,))):
        with pytest.raises(ValueError, match=f"two handlers for the command {name}"):
            CommandTable((COUNT, other))


def test_help_is_the_first_line_of_the_handler() -> None:
    assert [each.help for each in TABLE] == ["Counts documents.", ""]


def test_a_command_for_the_admin_database_is_refused_on_others() -> None:
    TABLE["stop"].check_database(request_of({"stop": 1}, "admin"))
    TABLE["count"].check_database(request_of({"count": 1}))
    with pytest.raises(CommandError, match=r"stop may only be run against the admin database\.$") as refused:
        TABLE["stop"].check_database(request_of({"stop": 1}))
    assert refused.value.code == ErrorCode.Unauthorized


def test_arguments_are_refused_only_where_they_are_listed() -> None:
    TABLE["stop"].check_arguments(request_of({"stop": 1, "fast": True}))
    COUNT.check_arguments(request_of({"Count": 1, "query": {}, "lsid": {}, "$clusterTime": {}}))
    with pytest.raises(CommandError, match=r"'count\.fast' is an unknown field") as refused:
        COUNT.check_arguments(request_of({"count": 1, "fast": True}))
    assert refused.value.code == 40415
