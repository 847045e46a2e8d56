"""Operations that wait to be admitted: how they are shown, and how they end."""

from functools import partial
from math import inf
from typing import Any
from uuid import UUID

import bson
import pytest
import trio
from bson.binary import Binary
from trio.testing import wait_all_tasks_blocked

from shardwright.shardd.operations.waiting_operations import WaitingOperations
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.message import OpMsg, op_msg
from shardwright.wire.request import Request

LSID = {"id": Binary.from_uuid(UUID(int=1))}
INSERT: dict[str, Any] = {"insert": "c", "documents": [{"_id": 1}], "lsid": LSID, "$db": "d"}


def request_of(command: dict[str, Any]) -> Request:
    return Request(OpMsg(op_msg(bson.encode(command), request_id=1)))


def nested(levels: int) -> dict[str, Any]:
    document: dict[str, Any] = {}
    for _ in range(levels):
        document = {"n": document}
    return document


def kill_by_number(waiting: WaitingOperations) -> None:
    (shown,) = waiting.operations("host:1")
    assert not waiting.kill(shown["opid"] + 1)
    assert waiting.kill(shown["opid"])


def kill_session(waiting: WaitingOperations) -> None:
    waiting.kill_sessions(lambda lsid: bson.decode(lsid) == LSID)


@pytest.mark.parametrize("kill", [kill_by_number, kill_session])
async def test_one_is_killed(kill: Any) -> None:  # noqa: ANN401 - one of the functions above
    waiting = WaitingOperations()

    async def wait() -> None:
        with pytest.raises(CommandError) as error, waiting.waiting(request_of(INSERT), inf):
            await trio.sleep_forever()
        assert error.value.code == ErrorCode.Interrupted

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await wait_all_tasks_blocked()
        kill(waiting)
    assert waiting.operations("host:1") == []


def shown_while_it_waits(request: Request) -> dict[str, Any]:
    async def main() -> dict[str, Any]:
        waiting = WaitingOperations()
        with waiting.waiting(request, inf):
            (operation,) = waiting.operations("host:1")
        return operation

    return trio.run(main)


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        (INSERT, INSERT),
        ({**INSERT, "comment": "x" * 20_000}, {"insert": "c"}),
        ({**INSERT, "comment": nested(150)}, {"insert": "c"}),
    ],
    ids=["usual", "large", "deep"],
)
def test_what_is_shown(command: dict[str, Any], shown: dict[str, Any]) -> None:
    operation = shown_while_it_waits(request_of(command))
    assert operation["command"] == shown
    assert (operation["ns"], operation["lsid"]["id"], operation["waitingForLock"]) == ("d.c", LSID["id"], True)


@pytest.mark.parametrize(
    ("command", "namespace", "large"),
    [
        ({"aggregate": 1, "pipeline": []}, "d.$cmd", {"aggregate": 1}),
        ({"coordinateCommitTransaction": 1}, "d.$cmd", {"coordinateCommitTransaction": 1}),
        ({"getMore": bson.Int64(7), "collection": "c"}, "d.c", {"getMore": "c"}),
        ({"explain": {"find": "c"}}, "d.c", {"explain": "c"}),
    ],
    ids=lambda given: next(iter(given)) if isinstance(given, dict) else "",
)
def test_operations_that_name_no_collection_are_shown(
    command: dict[str, Any], namespace: str, large: dict[str, Any]
) -> None:
    """One that could not be shown would hide all the others, on all shards."""
    command = {**command, "$db": "d"}
    operation = shown_while_it_waits(request_of(command))
    assert (operation["ns"], operation["command"]) == (namespace, command)
    operation = shown_while_it_waits(request_of({**command, "comment": "x" * 20_000}))
    assert (operation["ns"], operation["command"]) == (namespace, large)


def test_a_collection_whose_name_is_not_utf_8_is_shown() -> None:
    body = bson.encode(INSERT).replace(b"\x02\0\0\0c\0", b"\x02\0\0\0\xff\0", 1)
    assert shown_while_it_waits(Request(OpMsg(op_msg(body, request_id=1))))["ns"] == "d.\ufffd"


def test_what_is_malformed_is_shown_too() -> None:
    body = bytearray(bson.encode({"insert": "c", "comment": {"n": 1}, "$db": "d"}))
    body[body.index(b"\x10n\0")] = 0x7E  # a type that does not exist
    request = Request(OpMsg(op_msg(bytes(body), request_id=1)))
    assert shown_while_it_waits(request)["command"] == {"insert": "c"}


async def test_a_thousand_are_shown() -> None:
    """More might not fit into a command."""

    waiting = WaitingOperations()

    async def wait(task_status: trio.TaskStatus[None]) -> None:
        with waiting.waiting(request_of(INSERT), inf):
            task_status.started()
            await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        for _ in range(1_001):
            await nursery.start(partial(wait))
        shown = waiting.operations("host:1")
        assert len(shown) == 1_000
        assert len({each["opid"] for each in shown}) == 1_000
        nursery.cancel_scope.cancel()
