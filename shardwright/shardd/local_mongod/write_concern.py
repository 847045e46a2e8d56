"""The write concern of a shard's own writes."""

from collections.abc import Mapping
from typing import Any, Final

MAJORITY: Final[Mapping[str, Any]] = {"w": "majority", "wtimeout": 60_000}
"""For everything that must not be lost, with MongoDB's time limit for such writes between servers."""
