"""There is one way to write to a log: constant messages, and values in fields that all modules call alike."""

import ast
from pathlib import Path
from typing import Final

import pytest

from tests.log_rule import lines, other_ways
from tests.syntax import HOUSE
from tests.test_layout import PACKAGES, sources

WITH_LOGGING: Final = {"wire/logger.py", "daemon/logs.py", "daemon/log_formats.py"}
"""The first makes lines, the others determine their form and destination."""

WITH_PRINT: Final = {
    "daemon/configuration/process.py": "a configuration that is refused, or only checked or printed",
    "daemon/run.py": "why a daemon does not start, before it has a log",
    "deploy/certs.py": "a command that people run",
    "deploy/cli.py": "a command that people run",
    "deploy/demo.py": "a command that people run",
    "deploy/planned_files.py": "a command that people run",
    "deploy/upgrade.py": "a command that people run",
    "mongosh_compat/jstests/command.py": "a command that people run",
    "sync/cli.py": "a command that people run",
}

FILES: Final = {path.relative_to(HOUSE).as_posix(): path for package in PACKAGES for path in sources(package)}


def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def test_no_other_module_uses_the_standard_library_or_prints() -> None:
    exempt = WITH_LOGGING | WITH_PRINT.keys()
    assert [f"{name}:{each}" for name in FILES.keys() - exempt for each in other_ways(parsed(FILES[name]))] == []


@pytest.mark.parametrize("name", sorted(WITH_LOGGING | WITH_PRINT.keys()))
def test_exceptions_are_needed(name: str) -> None:
    assert list(other_ways(parsed(FILES[name])))


def test_messages_are_constant_and_fields_have_one_name_each() -> None:
    own = {name: path for name, path in FILES.items() if name not in WITH_LOGGING}
    found = {name: list(lines(parsed(path))) for name, path in own.items()}
    assert sum(map(len, found.values())) > 100
    assert [f"{name}:{fault}" for name, each in found.items() for line in each for fault in line.faults()] == []


@pytest.mark.parametrize(
    "call",
    [
        'logger.info(f"Lost {member}")',
        "logger.info(message)",
        'logger.info("Lost %s", member)',
        'logger.info("Lost " + member)',
        'logger.info("lost a member")',
        'logger.info("Lost a member.")',
        'logger.info("Lost a member: {}")',
        'self._logger.warning("Lost a member", ns=ns)',
        'logger.bind(shard="s").error("Lost a member", level=1)',
        '_logger_of(task).exception("Lost a member", memberName=1)',
    ],
)
def test_a_fault_is_found(call: str) -> None:
    (line,) = lines(ast.parse(call))
    assert list(line.faults())


@pytest.mark.parametrize(
    "call", ['logger.info("Lost a member", remote=address, **counts)', 'self._logger.debug("The 2nd try")']
)
def test_a_good_line_is_not_at_fault(call: str) -> None:
    (line,) = lines(ast.parse(call))
    assert list(line.faults()) == []


@pytest.mark.parametrize(
    "source", ["import logging", "import logging.handlers", "from logging import getLogger", 'print("x")']
)
def test_another_way_is_found(source: str) -> None:
    assert list(other_ways(ast.parse(source)))
