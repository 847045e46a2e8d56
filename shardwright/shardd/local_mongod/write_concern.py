"""With which write concern a shard writes what must not be lost."""

from collections.abc import Mapping
from typing import Any, Final

MAJORITY: Final[Mapping[str, Any]] = {"w": "majority", "wtimeout": 60_000}
"""The write concern of everything that must not be lost, with MongoDB's time limit for it between servers."""
