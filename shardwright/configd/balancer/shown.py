"""Decisions as the fields of a log line."""

import re
from collections.abc import Mapping
from typing import Any, Final

from bson.raw_bson import RawBSONDocument

from shardwright.sharding.bson_text import document_text

_NAMES: Final = {"ns": "namespace", "from": "donor", "to": "recipient", "reason": "why"}
_CAPITAL: Final = re.compile(r"([A-Z])")


def shown(document: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a decision, with shard keys as text."""
    return {_name(name): _text(value) for name, value in document.items()}


def _name(name: str) -> str:
    return _NAMES.get(name) or _CAPITAL.sub(r"_\1", name).lower()


def _text(value: object) -> object:
    if isinstance(value, RawBSONDocument):
        return document_text(bytes(value.raw))
    return [_text(each) for each in value] if isinstance(value, list) else value
