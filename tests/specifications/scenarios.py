"""The specifications' test files, and the files about deployments that this product does not have."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from bson import json_util

from tests.specifications.sources import specifications


def scenarios(folder: str, skipped: dict[str, str]) -> list[Any]:
    """A parameter for each file below a folder of the specifications.

    Args:
        folder: relative to the specifications' tests.
        skipped: reasons by the beginning of a file's path in the folder, or by the whole of it.
    """
    root = specifications() / folder
    return [
        pytest.param(
            path, id=name, marks=[pytest.mark.skip(reason=reason)] if (reason := _reason(name, skipped)) else []
        )
        for name, path in _files(root)
    ]


def load(path: Path) -> dict[str, Any]:
    """The decoded content of a file, in extended JSON."""
    document: dict[str, Any] = json_util.loads(path.read_text(encoding="utf-8"))
    return document


def _files(root: Path) -> Iterator[tuple[str, Path]]:
    for path in sorted(root.rglob("*.json")):
        yield path.relative_to(root).as_posix(), path


def _reason(name: str, skipped: dict[str, str]) -> str | None:
    return next((reason for beginning, reason in skipped.items() if name.startswith(beginning)), None)
