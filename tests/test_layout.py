"""The rules of the code base that a machine can check: who imports whom, and how large a file may grow."""

import ast
import re
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parent.parent
HOUSE: Final = ROOT / "shardwright"
SHARDD: Final = HOUSE / "shardd"

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

ROOMS: Final[dict[str, set[str]]] = {
    "exchange": set(),
    "local_mongod": set(),
    "cluster": {"local_mongod"},
    "orphans": {"local_mongod"},
    "session_history": {"local_mongod"},
    "shard_key_updates": {"exchange", "local_mongod", "session_history"},
    "metadata": {"cluster", "exchange", "local_mongod", "orphans"},
    "context": {"cluster", "local_mongod", "metadata", "orphans"},
    "ddl": {"context", "local_mongod", "metadata"},
    "operations": {"context", "exchange", "metadata", "session_history", "shard_key_updates"},
    "range_deleter": {"context", "local_mongod", "metadata", "orphans"},
    "migration": {
        "cluster",
        "context",
        "local_mongod",
        "metadata",
        "orphans",
        "range_deleter",
        "session_history",
    },
    "commands": {
        "cluster",
        "context",
        "ddl",
        "exchange",
        "local_mongod",
        "metadata",
        "migration",
        "operations",
        "range_deleter",
    },
}
"""The rooms of ``shardd``, lowest first, and the rooms that each of them imports, for type checkers alone included.

What stands beside the rooms puts them together, and may import all of them.
"""

WITHOUT_CIRCLES: Final = ("sharding", "router", "shardd", "configd", "deploy", "mongosh_compat")

WITHOUT_IO: Final = ("trio", "socket", "select", "asyncio", "threading", "subprocess")
"""What ``sharding`` never imports, nor ``wire`` outside of ``wire.transport``."""

LINES_MAX: Final = 500
TABLES: Final = {"wire/error_codes.py"}
"""Files that are one long table."""


def sources(package: str) -> list[Path]:
    return sorted((HOUSE / package).rglob("*.py"))


def imported(path: Path) -> Iterator[str]:
    """The names of modules that a file imports, or of what it imports from them."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.module, f"{path} has a relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def packages_imported(path: Path) -> Iterator[tuple[str, str]]:
    """What a file imports of our own: the package and the whole name."""
    for module in imported(path):
        top, _, rest = module.partition(".")
        if top == HOUSE.name:
            yield rest.partition(".")[0], module


def rooms_imported(room: str) -> dict[str, set[str]]:
    """Other rooms, or modules beside them, that the files of a room import, each with those that do."""
    found: dict[str, set[str]] = {}
    own = SHARDD / room
    for path in sorted(own.rglob("*.py")) if own.is_dir() else [own.with_suffix(".py")]:
        for package, module in packages_imported(path):
            other = [*module.split("."), ""][2]
            if package == SHARDD.name and other not in ("", room):
                found.setdefault(other, set()).add(path.relative_to(SHARDD).as_posix())
    return found


def test_nothing_of_ours_stands_outside() -> None:
    assert {each.name for each in HOUSE.iterdir() if each.is_dir() and each.name != "__pycache__"} == set(PACKAGES)


@pytest.mark.parametrize("package", MAY_IMPORT)
def test_imports_go_in_one_direction(package: str) -> None:
    wrong = {
        f"{path.relative_to(HOUSE)} imports {module}"
        for path in sources(package)
        for top, module in packages_imported(path)
        if top not in MAY_IMPORT[package]
    }
    assert not wrong


def test_all_rooms_are_listed() -> None:
    assert {each.name for each in SHARDD.iterdir() if (each / "__init__.py").exists()} <= ROOMS.keys()


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_imports_just_those_that_it_may(room: str) -> None:
    found = rooms_imported(room)
    assert {other: by for other, by in found.items() if other not in ROOMS[room]} == {}
    assert ROOMS[room] - found.keys() == set(), "not imported any more"


def test_rooms_do_not_import_each_other_in_a_circle() -> None:
    TopologicalSorter(ROOMS).prepare()


@pytest.mark.parametrize("package", WITHOUT_CIRCLES)
def test_no_file_imports_itself_in_the_end(package: str) -> None:
    """Imports for type checkers alone count: who reads one file of a circle has to read all of them."""
    names = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
        for path in sources(package)
    }
    imports = {
        name: {
            found for each in imported(path) if (found := each if each in names else each.rpartition(".")[0]) in names
        }
        for name, path in names.items()
    }
    try:
        TopologicalSorter({name: found - {name} for name, found in imports.items()}).prepare()
    except CycleError as error:
        pytest.fail(" imports ".join(reversed(error.args[1])))


@pytest.mark.parametrize("room", [room for room in ROOMS if (SHARDD / room).is_dir()])
def test_a_room_says_what_it_may_import(room: str) -> None:
    text = ast.get_docstring(ast.parse((SHARDD / room / "__init__.py").read_text(encoding="utf-8"))) or ""
    if not ROOMS[room]:
        assert text.endswith("Imports no other room.")
        return
    assert set(re.findall(r"`(\w+)`", text.partition("May import ")[2])) == ROOMS[room]


@pytest.mark.parametrize("package", ["sharding", "wire"])
def test_pure_packages_do_no_io(package: str) -> None:
    wrong = {
        f"{path.relative_to(HOUSE)} imports {module}"
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
        if (name := path.relative_to(HOUSE).as_posix()) not in TABLES
        if (lines := len(path.read_text(encoding="utf-8").splitlines())) > LINES_MAX
    }
    assert not sizes


@pytest.mark.parametrize("package", PACKAGES)
def test_modules_say_what_they_are_for(package: str) -> None:
    silent = {
        path.relative_to(HOUSE).as_posix()
        for path in sources(package)
        if ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) is None
    }
    assert not silent
