"""The read concern by which all shards read the same snapshot."""

from collections.abc import Mapping
from typing import Any, Final

from bson.timestamp import Timestamp

_TIME: Final = "atClusterTime"
_EARLIEST: Final = "afterClusterTime"
_NULL: Final = Timestamp(0, 0)


def demanded_time(concern: Mapping[str, Any], newest: Timestamp) -> Timestamp | None:
    """The cluster time at which to read; None if the times that the client gives are for a mongod to refuse.

    Args:
        concern: the client's read concern, of level snapshot.
        newest: the time at which to read if the client gives none, but not before its ``afterClusterTime``.
    """
    if _TIME in concern:
        time = concern[_TIME]
        is_valid = isinstance(time, Timestamp) and time != _NULL and _EARLIEST not in concern
        return time if is_valid else None
    earliest = concern.get(_EARLIEST, newest)
    return max(newest, earliest) if isinstance(earliest, Timestamp) else None


def concern_at(concern: Mapping[str, Any], time: Timestamp) -> dict[str, Any]:
    """A read concern at a time from `demanded_time`. A mongod refuses what else it has, as in the client's own one."""
    return {**{name: value for name, value in concern.items() if name != _EARLIEST}, "level": "snapshot", _TIME: time}
