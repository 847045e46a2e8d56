"""Which members of a replica set may serve a read.

The rules are those of the server selection specification
(https://github.com/mongodb/specifications/blob/master/source/server-selection/server-selection.md).
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from wire.error_codes import ErrorCode
from wire.errors import CommandError

LATENCY_WINDOW_SECONDS: Final = 0.015
_MODES: Final = frozenset({"primary", "primaryPreferred", "secondary", "secondaryPreferred", "nearest"})
_IDLE_WRITE_SECONDS: Final = 10.0
_STALENESS_SECONDS_MIN: Final = 90


@dataclass(frozen=True)
class Member:
    """What is known of one member of a replica set.

    Attributes:
        address: ``host:port``.
        kind: ``primary``, ``secondary``, ``other`` (arbiter, starting, …) or ``unknown`` (not reached).
        tags: its replica set tags.
        round_trip_seconds: smoothed time of a hello.
        last_write_seconds: its ``lastWrite.lastWriteDate`` in seconds since the epoch, for staleness.
        extensions: fields of requests beyond MongoDB's that it understands.
    """

    address: str
    kind: str = "unknown"
    tags: Mapping[str, str] = field(default_factory=dict)
    round_trip_seconds: float = 0.0
    last_write_seconds: float = 0.0
    extensions: frozenset[str] = frozenset()


@dataclass(frozen=True)
class ReadPreference:
    """A mode with its tag sets and staleness bound (0: none)."""

    mode: str = "primary"
    tag_sets: tuple[Mapping[str, str], ...] = ()
    max_staleness_seconds: int = 0

    @classmethod
    def parse(cls, document: Mapping[str, Any]) -> "ReadPreference":
        """From a ``$readPreference`` document.

        Raises:
            CommandError: TypeMismatch; BadValue, an unknown mode; FailedToParse, tags or staleness with mode primary;
                MaxStalenessOutOfRange.
        """
        mode = document.get("mode", "primary")
        if not isinstance(mode, str):
            raise _wrong_type("mode", "string")
        if mode not in _MODES:
            raise CommandError(
                ErrorCode.BadValue, f"Enumeration value '{mode}' for field '$readPreference.mode' is not a valid value."
            )
        tag_sets = _tag_sets(document.get("tags", []))
        staleness = _staleness(document.get("maxStalenessSeconds", 0))
        if mode == "primary" and any(tag_sets):
            raise CommandError(ErrorCode.FailedToParse, "Only empty tags are allowed with primary read preference")
        if staleness and mode == "primary":
            raise CommandError(ErrorCode.FailedToParse, "maxStalenessSeconds can not be set for the primary mode")
        if staleness < 0 or 0 < staleness < _STALENESS_SECONDS_MIN:
            raise CommandError(
                ErrorCode.MaxStalenessOutOfRange,
                f"maxStalenessSeconds value can not be less than {_STALENESS_SECONDS_MIN}",
            )
        return cls(mode, tag_sets, staleness)

    def candidates(self, members: Iterable[Member]) -> list[Member]:
        """The members that may serve the read, those within the latency window of the nearest of them."""
        primary = [member for member in members if member.kind == "primary"]
        secondaries = [member for member in members if member.kind == "secondary"]
        if self.mode == "primary":
            return primary
        if self.mode == "nearest":
            return self._near(primary, primary + secondaries)
        eligible = self._near(primary, secondaries)
        if self.mode == "primaryPreferred":
            return primary or eligible
        if self.mode == "secondaryPreferred":
            return eligible or primary
        return eligible

    def _near(self, primary: Sequence[Member], members: Sequence[Member]) -> list[Member]:
        matching = self._tagged([member for member in members if self._is_fresh(member, primary, members)])
        if not matching:
            return []
        limit = min(member.round_trip_seconds for member in matching) + LATENCY_WINDOW_SECONDS
        return [member for member in matching if member.round_trip_seconds <= limit]

    def _tagged(self, members: list[Member]) -> list[Member]:
        if not self.tag_sets:
            return members
        for tags in self.tag_sets:
            matching = [member for member in members if tags.items() <= member.tags.items()]
            if matching:
                return matching
        return []

    def _is_fresh(self, member: Member, primary: Sequence[Member], members: Sequence[Member]) -> bool:
        if not self.max_staleness_seconds or member.kind == "primary":
            return True
        newest = max(other.last_write_seconds for other in (*primary, *members))
        return newest - member.last_write_seconds + _IDLE_WRITE_SECONDS <= self.max_staleness_seconds


def _tag_sets(value: object) -> tuple[Mapping[str, str], ...]:
    if not isinstance(value, list):
        raise _wrong_type("tags", "array")
    for position, tags in enumerate(value):
        if not isinstance(tags, Mapping):
            raise _wrong_type(f"tags.{position}", "object")
        for name, tag in tags.items():
            if not isinstance(tag, str):
                raise _wrong_type(f"tags.{position}.{name}", "string")
    return tuple(dict(tags) for tags in value)


def _staleness(value: object) -> int:
    if value is None:
        return 0
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise _wrong_type("maxStalenessSeconds", "number")
    return int(value)


def _wrong_type(name: str, expected: str) -> CommandError:
    return CommandError(
        ErrorCode.TypeMismatch, f"BSON field '$readPreference.{name}' is the wrong type, expected type '{expected}'"
    )


PRIMARY: Final = ReadPreference()
