"""A normal form in which documents of two clusters can be compared.

Values that necessarily differ are replaced by the number of their first occurrence: the second ObjectId of a document
is ``<ObjectId 2>`` everywhere, so that fields that are equal on one cluster must be equal on the other. So are UUIDs
and cluster times (but not versions of chunks, which are Timestamps too). Dates become ``<date>``, and names and hosts
of servers become placeholders. Everything else is kept, including types of numbers and the order of fields.
"""

import json
import re
from collections.abc import Mapping
from datetime import datetime
from functools import partial
from typing import Any, Final

from bson.binary import UUID_SUBTYPE, Binary
from bson.int64 import Int64
from bson.max_key import MaxKey
from bson.min_key import MinKey
from bson.objectid import ObjectId
from bson.timestamp import Timestamp

_YEAR_2000: Final = 946_684_800
"""A Timestamp with fewer seconds is a version rather than a time."""

_IN_TEXT: Final = (
    (re.compile(r"(?<![0-9a-f])[0-9a-f]{24}(?![0-9a-f])"), "ObjectId"),  # Also as part of a name, as of a session.
    (re.compile(r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b"), "UUID"),
    (re.compile(r"Timestamp\(\d{9,}, \d+\)"), "time"),
    (re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00"), "date"),
)


def normal_form(value: Any, texts: Mapping[str, str]) -> list[str]:  # noqa: ANN401 - any BSON value
    """The lines of a document, or of a list of them.

    Args:
        value: a decoded BSON value.
        texts: what to replace in strings, longest first.
    """
    return json.dumps(_Normalizer(texts).normal(value), indent=1, ensure_ascii=False).splitlines()


class _Normalizer:
    def __init__(self, texts: Mapping[str, str]) -> None:
        self._texts = sorted(texts.items(), key=lambda item: -len(item[0]))
        self._seen: dict[str, dict[str, int]] = {}

    def normal(self, value: Any) -> Any:  # noqa: ANN401 - any BSON value
        match value:
            case Mapping():
                return {self._text(str(name)): self.normal(each) for name, each in value.items()}
            case list() | tuple():
                return [self.normal(each) for each in value]
            case str():
                return self._text(value)
            case bool() | None:
                return value
            case Int64():
                return f"<long {int(value)}>"
            case float():
                return f"<double {value}>"
            case ObjectId():
                return self._numbered("ObjectId", str(value)) if value != ObjectId("0" * 24) else "<no ObjectId>"
            case Binary() if value.subtype == UUID_SUBTYPE:
                return self._numbered("UUID", str(value.as_uuid()))
            case Timestamp() if value.time < _YEAR_2000:
                return f"<version {value.time}|{value.inc}>"
            case Timestamp():
                return self._numbered("time", f"Timestamp({value.time}, {value.inc})")
            case datetime():
                return "<date>"
            case MinKey() | MaxKey():
                return f"<{type(value).__name__}>"
            case int():
                return value
        return repr(value)

    def _text(self, text: str) -> str:
        for pattern, kind in _IN_TEXT:
            text = pattern.sub(partial(self._found, kind), text)
        for actual, name in self._texts:
            text = text.replace(actual, name)
        return text

    def _found(self, kind: str, found: re.Match[str]) -> str:
        return self._numbered(kind, found[0])

    def _numbered(self, kind: str, identity: str) -> str:
        seen = self._seen.setdefault(kind, {})
        return f"<{kind} {seen.setdefault(identity, len(seen) + 1)}>"
