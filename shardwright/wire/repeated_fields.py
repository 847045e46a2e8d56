"""Refusal of documents with two fields of one name, where we could judge one and mongod execute the other. Pure.

Joins with such fields even crash a mongod 6.0.5.
"""

import re
from typing import Final

from shardwright.wire.errors import duplicate_field
from shardwright.wire.rawbson import OBJECT, spans, spans_at_any_depth

_JOINS: Final = frozenset({b"$graphLookup", b"$lookup"})
_ANY_JOIN: Final = re.compile(rb"\$(?:graphLookup|lookup)\0")


def refuse_repeated_join_fields(document: bytes) -> None:
    """Raise 40413 for joins with two fields of one name, at any depth of a document."""
    if _ANY_JOIN.search(document) is None:
        return
    for name, (kind, _, value_start, _) in spans_at_any_depth(document):
        if kind == OBJECT and name in _JOINS:
            refuse_repeated_fields(document, value_start, name.decode())


def refuse_repeated_fields(document: bytes, start: int, path: str) -> None:
    """Raise 40413 for two fields of one name in the document at ``start``; ``path`` is its name in the message."""
    seen: set[bytes] = set()
    for name, _ in spans(document, start):
        if name in seen:
            raise duplicate_field(f"{path}.{name.decode(errors='replace')}")
        seen.add(name)
