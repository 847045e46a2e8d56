"""The rules of the code base that a machine can check: allowed imports, and the maximum size of a file."""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Final

import pytest

from tests.syntax import HOUSE, docstring, files_imported, imported, tree_of

PACKAGES: Final = (
    "wire",
    "daemon",
    "sharding",
    "config_servers",
    "router",
    "shardd",
    "configd",
    "deploy",
    "mongosh_compat",
    "sync",
    "console",
)

MAY_IMPORT: Final = {
    "wire": {"wire"},
    "daemon": {"daemon", "wire"},
    "sharding": {"sharding", "wire"},
    "config_servers": {"config_servers", "sharding", "wire"},
    "router": {"router", "config_servers", "daemon", "sharding", "wire"},
    "shardd": {"shardd", "config_servers", "daemon", "sharding", "wire"},
    "configd": {"configd", "daemon", "sharding", "wire"},
    "deploy": {"console", "daemon", "deploy", "mongosh_compat", "sync"},
    "mongosh_compat": {"mongosh_compat"},
    "sync": {"sync", "wire"},
    "console": {"console", "daemon", "sharding", "wire"},
}
"""The daemons meet on the wire alone. The launcher and the demo are clients of the processes that they start, and
replication and the console are clients of clusters. Deploying also reads and writes the daemons' files of options,
whose table is in `daemon`."""

ROOMS: Final[dict[str, dict[str, set[str]]]] = {
    "shardd": {
        "local_mongod": set(),
        "orphans": {"local_mongod"},
        "exchange": {"local_mongod", "orphans"},
        "session_history": {"local_mongod"},
        "metadata": {"exchange", "local_mongod", "orphans"},
        "context": {"exchange", "local_mongod", "metadata", "orphans"},
        "ddl": {"context", "local_mongod", "metadata"},
        "transactions": {"context", "exchange", "metadata", "orphans", "session_history"},
        "operations": {"context", "exchange", "local_mongod", "metadata", "session_history", "transactions"},
        "range_deleter": {"context", "local_mongod", "metadata", "orphans"},
        "migration": {
            "context",
            "exchange",
            "local_mongod",
            "metadata",
            "orphans",
            "range_deleter",
            "session_history",
        },
        "splitting": {"context", "exchange", "local_mongod", "metadata"},
        "resharding": {"context", "exchange", "local_mongod", "metadata", "migration", "session_history"},
        "two_phase_commit": {"context", "local_mongod", "metadata", "transactions"},
        "commands": {
            "context",
            "ddl",
            "exchange",
            "local_mongod",
            "metadata",
            "migration",
            "operations",
            "orphans",
            "range_deleter",
            "splitting",
            "resharding",
            "two_phase_commit",
        },
    },
    "router": {
        "access": set(),
        "placement": set(),
        "writes": set(),
        "replies": {"placement"},
        "reads": {"placement"},
        "pipelines": {"placement", "reads"},
        "ddl": {"replies"},
        "routing": {"placement"},
        "sending": {"replies", "routing"},
        "transactions": {"replies", "sending"},
        "exec": {"reads", "replies", "sending"},
        "cursors": {"exec", "replies"},
        "context": {"access", "cursors", "routing", "sending", "transactions", "writes"},
        "processes": {"context", "cursors"},
        "operations": {
            "context",
            "cursors",
            "exec",
            "pipelines",
            "placement",
            "reads",
            "replies",
            "routing",
            "transactions",
            "writes",
        },
        "change_streams": {"context", "exec", "operations", "placement", "reads", "replies", "routing"},
        "lookup": {"cursors", "exec", "operations", "pipelines", "placement", "reads", "replies"},
        "sessions": {"context", "operations", "placement", "replies", "transactions", "writes"},
        "commands": {
            "access",
            "change_streams",
            "context",
            "cursors",
            "ddl",
            "exec",
            "lookup",
            "operations",
            "pipelines",
            "placement",
            "processes",
            "reads",
            "replies",
            "sessions",
            "transactions",
            "writes",
        },
    },
    "configd": {
        "catalog": set(),
        "term": {"catalog"},
        "balancer": {"catalog", "term"},
        "resharding": {"catalog", "term"},
        "commands": {"balancer", "catalog", "term", "resharding"},
    },
    "wire": {
        "rawbson": set(),
        "wire": {"rawbson"},
        "transport": {"rawbson", "wire"},
    },
    "sharding": {
        "sharding": set(),
        "balancing": {"sharding"},
        "catalog": {"sharding"},
        "targeting": {"sharding"},
        "pipelines": {"sharding", "targeting"},
    },
    "daemon": {
        "daemon": set(),
        "configuration": {"daemon"},
        "sidecar": {"daemon"},
    },
    "mongosh_compat": {"mongosh_compat": set(), "jstests": {"mongosh_compat"}},
}
"""The rooms of each package, lowest first, and the rooms that each of them imports, also for type checkers alone.

Where files next to the rooms are below some of them, they are listed under the name of the package. Elsewhere they put
the rooms together: they may import all of them, and no room imports them.
"""

EACH_ROOM: Final = [(package, room) for package, rooms in ROOMS.items() for room in rooms]

CURSOR_READER: Final = "wire/transport/cursor.py"
"""The file with the loop over ``getMore``."""

SAME_IN_SEVERAL_ROOMS: Final = {
    "service.py",
}
"""Modules that ``shardd`` has more than once, because donor and recipient, or several rooms, have the same concept."""

LINES_MAX: Final = 500
TABLES: Final = {"wire/error_codes.py"}
"""Files that are one long table."""


def sources(package: str) -> list[Path]:
    return sorted((HOUSE / package).rglob("*.py"))


def packages_imported(path: Path) -> Iterator[tuple[str, str]]:
    """Yield a file's imports of our own: the package and the whole name."""
    for module in imported(path):
        top, _, rest = module.partition(".")
        if top == HOUSE.name:
            yield rest.partition(".")[0], module


def files_of_room(package: str, room: str) -> list[Path]:
    """Return the files of a room; the files next to the rooms, if it has the name of the package."""
    return sorted((HOUSE / package).glob("*.py") if room == package else (HOUSE / package / room).rglob("*.py"))


def rooms_imported(package: str, room: str) -> dict[str, set[str]]:
    """Return other rooms that the files of a room import, each with the importing files."""
    found: dict[str, set[str]] = {}
    for path in files_of_room(package, room):
        for top, module in packages_imported(path):
            if top != package:
                continue
            name = [*module.split("."), ""][2]
            other = name if (HOUSE / package / name / "__init__.py").exists() else package
            if other != room:
                found.setdefault(other, set()).add(path.relative_to(HOUSE).as_posix())
    return found


def test_a_name_of_a_module_of_shardd_means_one_thing() -> None:
    names = Counter(path.name for path in sources("shardd"))
    assert {name for name, count in names.items() if count > 1} - {"__init__.py"} == SAME_IN_SEVERAL_ROOMS


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


@pytest.mark.parametrize("package", PACKAGES)
def test_all_rooms_are_listed(package: str) -> None:
    rooms = {each.parent.name for each in (HOUSE / package).glob("*/__init__.py")}
    assert rooms == ROOMS.get(package, {}).keys() - {package}


@pytest.mark.parametrize(("package", "room"), EACH_ROOM)
def test_a_room_imports_just_those_that_it_may(package: str, room: str) -> None:
    found = rooms_imported(package, room)
    listed = ROOMS[package][room]
    assert {other: by for other, by in found.items() if other not in listed} == {}
    assert listed - found.keys() == set(), "not imported any more"


@pytest.mark.parametrize("package", ROOMS)
def test_rooms_do_not_import_each_other_in_a_circle(package: str) -> None:
    TopologicalSorter(ROOMS[package]).prepare()


def test_no_file_imports_itself_in_the_end() -> None:
    """Imports for type checkers alone count: who reads one file of a circle has to read all of them."""
    imports = {path: files_imported(path) for path in HOUSE.rglob("*.py")}
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        pytest.fail(" imports ".join(path.relative_to(HOUSE).as_posix() for path in reversed(error.args[1])))


@pytest.mark.parametrize(("package", "room"), [each for each in EACH_ROOM if each[0] != each[1]])
def test_a_room_says_what_it_may_import(package: str, room: str) -> None:
    text = docstring(HOUSE / package / room / "__init__.py")
    listed = ROOMS[package][room]
    if not listed:
        assert text.endswith("Imports no other room.")
        return
    assert set(re.findall(r"`(\w+)`", text.partition("May import ")[2])) == listed


@pytest.mark.parametrize("package", PACKAGES)
def test_files_stay_small_enough_to_hold_in_the_head(package: str) -> None:
    sizes = {
        name: lines
        for path in sources(package)
        if (name := path.relative_to(HOUSE).as_posix()) not in TABLES
        if (lines := len(path.read_text(encoding="utf-8").splitlines())) > LINES_MAX
    }
    assert not sizes


def test_cursors_are_read_in_one_place() -> None:
    """Clients' cursors on a router are passed on and not read; their ``getMore`` is made of bytes."""
    readers = {
        path.relative_to(HOUSE).as_posix()
        for package in PACKAGES
        for path in sources(package)
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Dict)
        if any(isinstance(key, ast.Constant) and key.value == "getMore" for key in node.keys)
    }
    assert readers == {CURSOR_READER}


@pytest.mark.parametrize("package", PACKAGES)
def test_modules_say_what_they_are_for(package: str) -> None:
    silent = {path.relative_to(HOUSE).as_posix() for path in sources(package) if not docstring(path)}
    assert not silent
