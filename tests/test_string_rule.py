"""Daemons test received values with `is_string`, because JavaScript is a ``str``, too."""

import ast
from collections.abc import Iterator
from typing import Final

import pytest

from tests.syntax import HOUSE, tree_of
from tests.test_layout import sources

DAEMONS: Final = ("wire", "daemon", "sharding", "config_servers", "router", "shardd", "configd")

WITH_OWN_VALUES: Final = {
    "router/operations/write_execution.py": "where a statement goes",
    "router/writes/run.py": "where a statement goes",
    "wire/rawbson/building.py": "text of which an element is made",
}


def faults(tree: ast.Module) -> Iterator[int]:
    """The lines that take each instance of ``str`` for a string."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Name("isinstance"), args=[_, kinds]):
                if any(isinstance(each, ast.Name) and each.id == "str" for each in ast.walk(kinds)):
                    yield node.lineno
            case ast.MatchClass(cls=ast.Name("str")):
                yield node.cls.lineno


def found() -> set[str]:
    files = [path for package in DAEMONS for path in sources(package)]
    return {path.relative_to(HOUSE).as_posix() for path in files if list(faults(tree_of(path)))}


def test_strings_are_told_from_javascript() -> None:
    assert found() == WITH_OWN_VALUES.keys()


@pytest.mark.parametrize(
    "source",
    ["isinstance(a, str)", "isinstance(a, str | None)", "isinstance(a, (int, str))", "match a:\n    case str(): pass"],
)
def test_a_fault_is_found(source: str) -> None:
    assert list(faults(ast.parse(source)))
