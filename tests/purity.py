"""The rule for modules marked as pure, checked on the syntax tree: no I/O and no waiting."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

from tests.syntax import HOUSE, docstring, imported, reached, tree_of

_SAYS_PURE: Final = re.compile(r"\b(without|no|sans) I/O\b|\bpure\b", re.IGNORECASE)
"""The phrases with which a module, or a package for all its modules, claims purity."""

_MODULES: Final = ("asyncio", "os", "select", "selectors", "signal", "socket", "subprocess", "threading", "trio")
_FUNCTIONS: Final = ("input", "open", "print", "sleep", "time.sleep")
_WAITING: Final = (ast.AsyncFunctionDef, ast.Await, ast.AsyncFor, ast.AsyncWith)


def is_to_be_pure(path: Path) -> bool:
    """Whether a module says that it does no I/O, or a package that it is in; `wire` does none but in its transport."""
    if path.is_relative_to(HOUSE / "wire"):
        return not path.is_relative_to(HOUSE / "wire" / "transport")
    packages = [each / "__init__.py" for each in path.parents if HOUSE in each.parents]
    return any(_SAYS_PURE.search(docstring(each)) for each in (path, *packages))


def impurities(path: Path) -> set[str]:
    """Return the I/O and waits in a file and in everything that it imports."""
    return {f"{each}: {what}" for each in reached(path) for what in _impurities_of(each)}


@cache
def _impurities_of(path: Path) -> frozenset[str]:
    return frozenset(_found_in(path))


def _found_in(path: Path) -> Iterator[str]:
    yield from (name for name in imported(path) if name.partition(".")[0] in _MODULES or name in _FUNCTIONS)
    for node in ast.walk(tree_of(path)):
        if isinstance(node, _WAITING):
            yield type(node).__name__
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in _FUNCTIONS:
            yield ast.unparse(node.func)
