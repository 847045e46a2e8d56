"""Read preference: the replica set members that may serve a read; `wire.discovery.selection` applies it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from bson.decimal128 import Decimal128

from shardwright.wire.arguments import clamp_int64
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError, unknown_field
from shardwright.wire.rawbson import is_string
from shardwright.wire.type_names import type_name_of

READ_PREFERENCE: Final = b"$readPreference"
"""Name of the field, which any command may have."""

_MODES: Final = frozenset({"primary", "primaryPreferred", "secondary", "secondaryPreferred", "nearest"})
_STALENESS_SECONDS_MIN: Final = 90
_NO_STRING: Final = 13111


@dataclass(frozen=True)
class ReadPreference:
    """A mode with its tag sets and maximum staleness (0: no limit).

    Invalid tag sets and tags are kept: the selection of members refuses or ignores them.
    """

    mode: str = "primary"
    tag_sets: tuple[Any, ...] = ()
    max_staleness_seconds: int = 0

    @classmethod
    def parse(cls, document: object) -> "ReadPreference":
        """Parse the value of `READ_PREFERENCE`.

        Raises:
            CommandError: TypeMismatch; NoSuchKey without a mode; BadValue, an unknown mode, or tags or staleness with
                mode primary; InvalidOptions, hedged reads with it; 40415; MaxStalenessOutOfRange.
        """
        if not isinstance(document, Mapping):
            raise CommandError(
                ErrorCode.TypeMismatch,
                f"$readPreference has incorrect type: expected object but got {type_name_of(document)}",
            )
        mode = _mode(document)
        _check_hedge(mode, document)
        tag_sets = document.get("tags", [])
        if not isinstance(tag_sets, list):
            raise _wrong_type("tags", "array", tag_sets)
        if mode == "primary" and any(tag_sets):
            raise CommandError(ErrorCode.BadValue, "Only empty tags are allowed with primary read preference")
        staleness = _staleness(document.get("maxStalenessSeconds", 0))
        if staleness and mode == "primary":
            raise CommandError(ErrorCode.BadValue, "maxStalenessSeconds can not be set for the primary mode")
        if 0 < staleness < _STALENESS_SECONDS_MIN:
            raise CommandError(
                ErrorCode.MaxStalenessOutOfRange,
                f"maxStalenessSeconds value can not be less than {_STALENESS_SECONDS_MIN}",
            )
        return cls(mode, tuple(tag_sets), staleness)


def has_tags(tags: Mapping[str, str], wanted: object) -> bool:
    """Whether a member has all ``wanted`` tags, one of the ``tag_sets``; False if ``wanted`` is not a set.

    Raises 13111 if a wanted tag is not a string.
    """
    if not isinstance(wanted, Mapping):
        return False
    for name, tag in wanted.items():
        if not is_string(tag):
            raise CommandError(_NO_STRING, f"wrong type for field ({name}) {type_name_of(tag)} != string")
        if tags.get(name) != tag:
            return False
    return True


def _mode(document: Mapping[str, Any]) -> str:
    if "mode" not in document:
        raise CommandError(ErrorCode.NoSuchKey, 'Missing expected field "mode"')
    mode = document["mode"]
    if not is_string(mode):
        raise _wrong_type("mode", "string", mode)
    if mode not in _MODES:
        raise CommandError(
            ErrorCode.BadValue,
            f"Could not parse $readPreference mode '{mode}'. Only the modes 'primary', 'primaryPreferred', "
            "'secondary', 'secondaryPreferred', and 'nearest' are supported. :: caused by :: "
            f"Enumeration value '{mode}' for field 'mode' is not a valid value.",
        )
    return mode


def _check_hedge(mode: str, document: Mapping[str, Any]) -> None:
    """Check the options of hedged reads, which are validated but not implemented."""
    if "hedge" not in document:
        return
    hedge = document["hedge"]
    if not isinstance(hedge, Mapping):
        raise CommandError(
            ErrorCode.TypeMismatch, f"hedge field must be of type object if provided; found hedge: {hedge}"
        )
    for name, value in hedge.items():
        if name not in ("enabled", "delay"):
            raise unknown_field(f"hedge.{name}")
        if value is not None and not isinstance(value, bool):
            raise CommandError(
                ErrorCode.TypeMismatch,
                f"BSON field 'hedge.{name}' is the wrong type '{type_name_of(value)}', expected type 'bool'",
            )
    if mode == "primary" and hedge.get("enabled") is not False:
        raise CommandError(ErrorCode.InvalidOptions, 'cannot enable hedging for $readPreference mode "primaryOnly"')


def _staleness(value: Any) -> int:  # noqa: ANN401 - whatever a client sent
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal128):
        raise CommandError(
            ErrorCode.TypeMismatch,
            f'Expected field "maxStalenessSeconds" to have numeric type, but found {type_name_of(value)}',
        )
    seconds = clamp_int64(value)
    if isinstance(value, float) and seconds != value:
        shown = str(value)
        raise CommandError(
            ErrorCode.BadValue,
            'Expected field "maxStalenessSeconds" to have a value exactly representable as a 64-bit integer, '
            f"but found maxStalenessSeconds: {shown if '.' in shown else shown + '.0'}",
        )
    if seconds < 0:
        raise CommandError(ErrorCode.BadValue, "maxStalenessSeconds must be a non-negative integer")
    return seconds


def _wrong_type(name: str, expected: str, value: object) -> CommandError:
    return CommandError(
        ErrorCode.TypeMismatch,
        f'"{name}" had the wrong type. Expected {expected}, found {type_name_of(value)}',
    )


PRIMARY: Final = ReadPreference()
PRIMARY_PREFERRED: Final = ReadPreference("primaryPreferred")
