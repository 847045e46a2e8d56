"""Comparison of a collection's options on two mongods. No I/O."""

from collections.abc import Mapping
from typing import Any, Final

from shardwright.wire.rawbson import encode_document

MODIFIABLE: Final[Mapping[str, Any]] = {
    "validator": {},
    "validationLevel": "strict",
    "validationAction": "error",
    "changeStreamPreAndPostImages": {"enabled": False},
}
"""The options that ``collMod`` can change, with their defaults."""


def option_value(name: str, options: Mapping[str, Any]) -> object:
    """Return the value of an option, or its default if it is left out."""
    return options.get(name, MODIFIABLE.get(name))


def different_options(options: Mapping[str, Any], others: Mapping[str, Any]) -> list[str]:
    """Return the sorted names of options that differ, in the format of ``listCollections``. The UUID is ignored."""
    names = {*options, *others} - {"uuid"}
    return sorted(name for name in names if not _is_same(name, options, others))


def _is_same(name: str, options: Mapping[str, Any], others: Mapping[str, Any]) -> bool:
    return encode_document({name: option_value(name, options)}) == encode_document({name: option_value(name, others)})
