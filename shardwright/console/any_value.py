"""BSON values of any kind, read from a cluster or parsed from Extended JSON, even if pymongo refuses them by default.

A cluster may store dates beyond the year 9999 and strings that are not valid UTF-8. One of them must not break a page.
"""

from collections.abc import Mapping
from typing import Any, Final

import bson
from bson.codec_options import CodecOptions, DatetimeConversion
from bson.errors import BSONError
from bson.json_util import JSONOptions, loads

CLIENT_OPTIONS: Final[Mapping[str, Any]] = {
    "datetime_conversion": DatetimeConversion.DATETIME_AUTO.name,
    "unicode_decode_error_handler": "replace",
}
"""Options of a client that reads any value."""

CODEC: Final[CodecOptions[dict[str, Any]]] = CodecOptions(
    datetime_conversion=DatetimeConversion.DATETIME_AUTO, unicode_decode_error_handler="replace"
)
"""The same options, for reads by other clients."""

JSON_OPTIONS: Final = JSONOptions(tz_aware=True, datetime_conversion=DatetimeConversion.DATETIME_AUTO)

MALFORMED: Final = (BSONError, ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
"""Errors that parsers raise for invalid values; each parser raises several of them."""


def value_of(text: str) -> Any:  # noqa: ANN401 - any value
    """Parse a value in Extended JSON.

    Raises:
        ValueError: it is not valid, or BSON does not have such a value.
    """
    try:
        return checked(loads(text, json_options=JSON_OPTIONS))
    except MALFORMED as error:
        raise ValueError(f"not a value in Extended JSON: {error}") from error


def checked(value: Any) -> Any:  # noqa: ANN401 - any value
    """Return a value if BSON can represent it.

    Raises:
        ValueError: it cannot be sent: an integer is too large, a text is not Unicode, or a name has a null byte.
    """
    try:
        bson.encode({"": value})
    except MALFORMED as error:
        raise ValueError(f"BSON does not have such a value: {error}") from error
    return value
