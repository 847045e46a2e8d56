"""MongoDB's own definition of a suite: its files, and how the shell and the cluster are prepared for them.

The format is resmoke's, as in ``buildscripts/resmokeconfig/suites`` of MongoDB's repository. Only these
parts of a definition are used: the selected files, the code and the test data of the shell, and the number of shards.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import yaml

from shardwright.mongosh_compat.jstests.suite import Suite, find_suites

_DEFINITIONS: Final = Path("buildscripts") / "resmokeconfig" / "suites"
_ROOT: Final = "jstests"
_SHARDS: Final = 2


@dataclass(frozen=True)
class Definition:
    """The selected files, and the preparation.

    Attributes:
        suites: the files, named by their paths below ``jstests``.
        code: evaluated by the shell before each of them.
        shards: the number of shards of the cluster.
    """

    suites: Sequence[Suite]
    code: str = ""
    shards: int = _SHARDS


def of_folders(checkout: Path, folders: Sequence[str]) -> Definition:
    """All files of folders below ``jstests``, or single files there, without a preparation.

    Raises:
        FileNotFoundError: one of them does not exist.
    """
    root = checkout / _ROOT
    return Definition(_named(checkout, find_suites([root / each for each in folders])))


def read_definition(checkout: Path, name: str) -> Definition:
    """Read a definition of the checkout.

    Raises:
        FileNotFoundError: the checkout has no such definition.
    """
    document = yaml.safe_load((checkout / _DEFINITIONS / f"{name}.yml").read_text(encoding="utf-8"))
    selector, executor = document["selector"], document["executor"]
    excluded = set(_matching(checkout, selector.get("exclude_files", ())))
    files = [each for each in _matching(checkout, selector["roots"]) if each not in excluded]
    tags = frozenset(selector.get("exclude_with_any_tags", ()))
    suites = [each for each in find_suites(files) if not tags & each.tags]
    shell = executor["config"].get("shell_options", {})
    shards = executor.get("fixture", {}).get("num_shards", _SHARDS)
    return Definition(_named(checkout, suites), _code(shell), shards)


def _matching(checkout: Path, patterns: Sequence[str]) -> Iterator[Path]:
    for pattern in patterns:
        yield from sorted(checkout.glob(pattern))


def _named(checkout: Path, suites: Sequence[Suite]) -> list[Suite]:
    root = checkout / _ROOT
    return [replace(each, name=Path(each.name).relative_to(root).as_posix()) for each in suites]


def _code(shell: dict[str, Any]) -> str:
    data = shell.get("global_vars", {}).get("TestData", {})
    return f"Object.assign(TestData, {json.dumps(data)});\n{shell.get('eval', '')}"
