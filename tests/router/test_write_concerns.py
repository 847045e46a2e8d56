"""The ``writeConcern`` of commands that the router does not just pass on is checked as a mongod checks it."""

from typing import Any, Final

import pytest

from tests.local_cluster import Client
from tests.router.beside_mongod import Command, run

DB: Final = "write_concerns"

COMMANDS: Final[list[Command]] = [
    {"drop": "missing"},
    {"dropIndexes": "missing", "index": "a_1"},
    {"dropDatabase": 1},
    {"collMod": "missing"},
    {"create": "created"},
    {"createIndexes": "created", "indexes": [{"key": {"a": 1}, "name": "a_1"}]},
    {"convertToCapped": "missing", "size": 1000},
]
REFUSED: Final[list[Any]] = [
    5,
    None,
    [],
    {"w": -3},
    {"w": 51},
    {"w": 2**40},
    {"w": 50.5, "j": "x"},
    {"w": {}},
    {"w": []},
    {"w": True},
    {"w": 1, "unknown": 1},
    {"j": "x"},
    {"fsync": "x"},
    {"j": True, "fsync": True},
    {"wtimeout": 2**40},
    {"w": "majority", "provenance": "x"},
]
ACCEPTED: Final[list[Any]] = [
    {},
    {"w": 1.5},
    {"w": 0, "j": True},
    {"w": "majority", "provenance": "clientSupplied"},
    {"w": 1, "j": 5},
    {"wtimeout": "x"},
    {"wtimeout": -1},
    {"wtimeout": None},
    {"fsync": True},
]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: next(iter(command)))
def test_refused(router: Client, plain: Client, command: Command) -> None:
    for concern in REFUSED:
        asked = {**command, "writeConcern": concern}
        refused = run(router, asked, DB)
        assert refused["ok"] == 0.0, concern
        assert refused == run(plain, asked, DB), concern


def test_of_administration_commands(router: Client, plain: Client) -> None:
    for command in ({"setFeatureCompatibilityVersion": "6.0"}, {"renameCollection": f"{DB}.a", "to": f"{DB}.b"}):
        asked = {**command, "writeConcern": {"w": -3}}
        assert run(router, asked) == run(plain, asked)


@pytest.mark.parametrize("concern", ACCEPTED, ids=str)
def test_accepted(router: Client, plain: Client, concern: object) -> None:
    command = {"create": "accepted", "writeConcern": concern}
    for client in (router, plain):
        assert run(client, command, DB) == {"ok": 1.0}
        client[DB].drop_collection("accepted")
