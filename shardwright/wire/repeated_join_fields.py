"""Joins with two fields of one name, which end a mongod 6.0.5: it reads the one, and then runs the other. Pure."""

import re
from typing import Final

from shardwright.wire.field_errors import duplicate_field
from shardwright.wire.rawbson import ARRAY, OBJECT, spans

_JOINS: Final = frozenset({b"$graphLookup", b"$lookup"})
_ANY_JOIN: Final = re.compile(rb"\$(?:graphLookup|lookup)\0")


def refuse_repeated_join_fields(document: bytes) -> None:
    """Refuse them in a document, at whatever depth.

    Raises:
        CommandError: 40413.
        InvalidBSONError: it is not well-formed.
    """
    if _ANY_JOIN.search(document) is None:
        return
    pending = [0]
    while pending:
        for name, (kind, _, value_start, _) in spans(document, pending.pop()):
            if kind in (OBJECT, ARRAY):
                pending.append(value_start)
            if kind == OBJECT and name in _JOINS:
                _refuse_repeated(document, name, value_start)


def _refuse_repeated(document: bytes, join: bytes, start: int) -> None:
    seen: set[bytes] = set()
    for name, _ in spans(document, start):
        if name in seen:
            raise duplicate_field(f"{join.decode()}.{name.decode(errors='replace')}")
        seen.add(name)
