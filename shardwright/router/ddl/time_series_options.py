"""The option ``timeseries`` of ``shardCollection``, checked as mongos's command parser does."""

from typing import Any, Final

from shardwright.wire.arguments import Arguments
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.field_errors import missing_field, unknown_field
from shardwright.wire.rawbson import decode_document
from shardwright.wire.request import Request

_OPTION: Final = "shardCollection.timeseries"
_SPAN_SECONDS: Final = {"seconds": 3600, "minutes": 86_400, "hours": 2_592_000}
_FIELDS: Final = ("timeField", "metaField", "granularity", "bucketMaxSpanSeconds")

_OTHER_SPAN: Final = 5510500
"""MongoDB's number for a span that does not follow from the granularity."""


def check_time_series(request: Request) -> None:
    """Refuse options of a time-series collection that do not make sense by themselves.

    Raises:
        CommandError: TypeMismatch, 40414, 40415, BadValue or 5510500.
    """
    raw = Arguments.of(request, "shardCollection").maybe_raw(b"timeseries")
    if raw is None:
        return
    options: dict[str, Any] = decode_document(raw)
    for name in options:
        if name not in _FIELDS:
            raise unknown_field(f"{_OPTION}.{name}")
    if "timeField" not in options:
        raise missing_field(f"{_OPTION}.timeField")
    granularity = options.get("granularity", "seconds")
    if granularity not in _SPAN_SECONDS:
        raise CommandError(
            ErrorCode.BadValue,
            f"Enumeration value '{granularity}' for field '{_OPTION}.granularity' is not a valid value.",
        )
    expected = _SPAN_SECONDS[granularity]
    if options.get("bucketMaxSpanSeconds", expected) != expected:
        raise CommandError(
            _OTHER_SPAN,
            "Timeseries 'bucketMaxSpanSeconds' is not configurable to a value other than the default of "
            f"{expected} for the provided granularity",
        )
