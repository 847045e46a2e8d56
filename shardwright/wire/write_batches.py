"""Dividing what is to be written among commands that a mongod accepts. No I/O."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from shardwright.wire.limits import BSON_OBJECT_BYTES_MAX
from shardwright.wire.rawbson import encode_document, raw_document

ITEMS_MAX: Final = 10_000
"""The most documents or statements in a command, so that other commands get their turn between two of them."""

_ELEMENT_BYTES: Final = 1 + 5 + 1  # the type and the name of an element of an array, of at most five digits


def write_batches(items: Iterable[Mapping[str, Any]]) -> Iterator[list[Mapping[str, Any]]]:
    """Documents or statements in batches of at most `ITEMS_MAX`, which leave room for the rest of a command.

    A document that is as large as one may be is a batch by itself.
    """
    batch: list[Mapping[str, Any]] = []
    size = 0
    for item in items:
        encoded = encode_document(item)
        added = len(encoded) + _ELEMENT_BYTES
        if batch and (len(batch) == ITEMS_MAX or size + added > BSON_OBJECT_BYTES_MAX):
            yield batch
            batch, size = [], 0
        batch.append(raw_document(encoded))
        size += added
    if batch:
        yield batch
