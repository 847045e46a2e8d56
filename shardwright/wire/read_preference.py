"""Which members of a replica set a client allows to serve a read; `wire.discovery.selection` applies it."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError

_MODES: Final = frozenset({"primary", "primaryPreferred", "secondary", "secondaryPreferred", "nearest"})
_STALENESS_SECONDS_MIN: Final = 90


@dataclass(frozen=True)
class ReadPreference:
    """A mode with its tag sets and maximum staleness (0: no limit)."""

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
