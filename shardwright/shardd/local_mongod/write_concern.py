"""The write concern of a shard's own writes."""

from collections.abc import Mapping
from typing import Any, Final

MAJORITY: Final[Mapping[str, Any]] = {"w": "majority", "wtimeout": 60_000}
"""For everything that must not be lost, with MongoDB's time limit for such writes between servers."""

LOCAL_WRITE_CONCERN: Final[Mapping[str, Any]] = {"w": 1}
"""Does not wait for other members; mongod's default, the majority, would cost a flush of the journal each time."""
