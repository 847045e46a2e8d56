"""``docs/compatibility.md`` lists every command with its true state."""

import re
from collections import Counter
from pathlib import Path

import pytest

from shardwright.router.commands.router_commands import ROUTER_COMMANDS
from tests.router.commands_of_mongos import ABSENT, ADDED, ONLY_WITH_TEST_COMMANDS, REFUSED, RUN
from tests.router.lone_router import run_lone, run_one

PAGE = Path(__file__).parent.parent.parent / "docs" / "compatibility.md"
SPELLINGS = {name for entry in ROUTER_COMMANDS for name in entry.names}
ROW = re.compile(r"^\| (?P<commands>`.*?) \| (?P<state>yes|part|no) \|", re.MULTILINE)


def rows() -> list[tuple[set[str], str]]:
    """The commands of each row of the tables, and their state."""
    found = [
        (set(re.findall(r"`(\w+)`", match["commands"])), match["state"])
        for match in ROW.finditer(PAGE.read_text(encoding="utf-8"))
    ]
    assert len(found) > 30
    return found


def test_every_command_of_the_router_is_on_the_page() -> None:
    named = {name for names, state in rows() if state != "no" for name in names}
    assert {entry.name for entry in ROUTER_COMMANDS} <= named


def test_every_alias_is_on_the_page() -> None:
    """Aliases that differ from a name on the page in case only, such as ``isMaster`` and ``ismaster``, are exempt."""
    named = {name.lower() for names, state in rows() if state != "no" for name in names}
    assert {name.lower() for name in SPELLINGS} <= named


def test_no_command_is_on_the_page_twice() -> None:
    counts = Counter(name for names, _ in rows() for name in names)
    assert [name for name, count in counts.items() if count > 1] == []


def test_nothing_on_the_page_is_missing_in_the_router() -> None:
    named = {name for names, state in rows() if state != "no" for name in names}
    assert named <= SPELLINGS


def test_what_the_page_says_is_missing_is_missing() -> None:
    absent = {name for names, state in rows() if state == "no" for name in names}
    assert not absent & SPELLINGS


def test_the_router_has_the_commands_of_mongos() -> None:
    """All of them, and no others except intentional additions."""
    spellings = {name.lower() for name in RUN | REFUSED.keys() | ADDED.keys()}
    assert {name.lower() for name in SPELLINGS} == spellings
    assert (RUN | REFUSED.keys() | ADDED.keys()) <= SPELLINGS


def test_test_commands_are_those_of_mongos() -> None:
    assert {entry.name for entry in ROUTER_COMMANDS if entry.test_only} == ONLY_WITH_TEST_COMMANDS


def test_what_mongos_only_refuses() -> None:
    replies = run_lone(*({name: 1} for name in REFUSED), enableTestCommands="1")
    assert {name: (reply.get("code"), reply["errmsg"]) for name, reply in zip(REFUSED, replies, strict=True)} == REFUSED


@pytest.mark.parametrize("test_commands", ["0", "1"])
def test_what_mongos_does_not_have(test_commands: str) -> None:
    names = sorted(ABSENT if test_commands == "1" else ABSENT | ONLY_WITH_TEST_COMMANDS)
    replies = run_lone(*({name: 1} for name in names), enableTestCommands=test_commands)
    for name, reply in zip(names, replies, strict=True):
        assert reply == {
            "ok": 0.0,
            "errmsg": f"no such cmd: {name}",
            "code": 59,
            "codeName": "CommandNotFound",
        }


def test_what_the_page_says_is_missing_is_refused_as_unknown() -> None:
    absent = sorted({name for names, state in rows() if state == "no" for name in names})
    for reply, name in zip(run_lone(*({name: 1} for name in absent)), absent, strict=True):
        assert reply["code"] == 59, name


@pytest.mark.parametrize("test_commands", [False, True])
def test_list_commands_agrees_with_the_registry(test_commands: bool) -> None:
    listed = run_one({"listCommands": 1}, enableTestCommands=str(int(test_commands)))["commands"]
    assert listed.keys() == {entry.name for entry in ROUTER_COMMANDS if test_commands or not entry.test_only}
    documented = {name for names, state in rows() if state != "no" for name in names}
    assert listed.keys() <= documented
