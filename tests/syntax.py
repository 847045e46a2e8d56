"""The code base as syntax trees: the docstring and the imports of each file."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parent.parent
HOUSE: Final = ROOT / "shardwright"


@cache
def tree_of(path: Path) -> ast.Module:
    """The syntax tree of a file."""
    return ast.parse(path.read_text(encoding="utf-8"))


def docstring(path: Path) -> str:
    """Return the docstring of a module."""
    return ast.get_docstring(tree_of(path)) or ""


def imported(path: Path) -> Iterator[str]:
    """Yield the names of modules that a file imports, or of the names that it imports from them."""
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.module, f"{path} has a relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def file_of(name: str) -> Path | None:
    """The file of a module of ours, or of the module that has something of that name; None for any other name."""
    for each in (name, name.rpartition(".")[0]):
        path = ROOT.joinpath(*each.split("."))
        for file in (path.with_suffix(".py"), path / "__init__.py"):
            if each.startswith(HOUSE.name) and file.is_file():
                return file
    return None


@cache
def files_imported(path: Path) -> frozenset[Path]:
    """The files of ours that a file imports."""
    return frozenset(file for name in imported(path) if (file := file_of(name)) is not None and file != path)


def reached(path: Path) -> set[Path]:
    """Return a file, and all our files that it imports directly or indirectly."""
    found, ends = {path}, [path]
    while ends:
        new = files_imported(ends.pop()) - found
        found |= new
        ends += new
    return found
