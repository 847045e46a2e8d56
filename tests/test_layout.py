"""The rules of the code base that a machine can check: who imports whom, and how large a file may grow."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parent.parent

PACKAGES: Final = ("wire", "daemon", "sharding", "router", "shardd", "configd", "deploy", "mongosh_compat")

MAY_IMPORT: Final = {
    "wire": {"wire"},
    "daemon": {"daemon", "wire"},
    "sharding": {"sharding", "wire"},
    "router": {"router", "daemon", "sharding", "wire"},
    "shardd": {"shardd", "daemon", "sharding", "wire"},
    "configd": {"configd", "daemon", "sharding", "wire"},
    "deploy": {"deploy", "mongosh_compat"},
    "mongosh_compat": {"mongosh_compat"},
}
"""The daemons meet on the wire alone. The launcher and the demo are clients of the processes that they start."""

WITHOUT_IO: Final = ("trio", "socket", "select", "asyncio", "threading", "subprocess")
"""What ``sharding`` never imports, nor ``wire`` outside of ``wire.transport``."""

LINES_MAX: Final = 500
TABLES: Final = {"wire/error_codes.py"}
"""Files that are one long table."""


def sources(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


def imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


@pytest.mark.parametrize("package", MAY_IMPORT)
def test_imports_go_in_one_direction(package: str) -> None:
    wrong = {
        f"{path.relative_to(ROOT)} imports {module}"
        for path in sources(package)
        for module in imported(path)
        if (top := module.partition(".")[0]) in PACKAGES and top not in MAY_IMPORT[package]
    }
    assert not wrong


@pytest.mark.parametrize("package", ["sharding", "wire"])
def test_pure_packages_do_no_io(package: str) -> None:
    wrong = {
        f"{path.relative_to(ROOT)} imports {module}"
        for path in sources(package)
        if "transport" not in path.parts
        for module in imported(path)
        if module.partition(".")[0] in WITHOUT_IO
    }
    assert not wrong


@pytest.mark.parametrize("package", PACKAGES)
def test_files_stay_small_enough_to_hold_in_the_head(package: str) -> None:
    sizes = {
        name: lines
        for path in sources(package)
        if (name := path.relative_to(ROOT).as_posix()) not in TABLES
        if (lines := len(path.read_text(encoding="utf-8").splitlines())) > LINES_MAX
    }
    assert not sizes


@pytest.mark.parametrize("package", PACKAGES)
def test_modules_say_what_they_are_for(package: str) -> None:
    silent = {
        path.relative_to(ROOT).as_posix()
        for path in sources(package)
        if ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) is None
    }
    assert not silent
