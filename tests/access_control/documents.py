"""Documents that a dict cannot be."""

from typing import Any

from bson import encode
from bson.raw_bson import RawBSONDocument

from shardwright.wire.rawbson import from_elements


def with_fields(*fields: tuple[str, Any]) -> RawBSONDocument:
    """A document with these fields in this order, even if some have the same name."""
    return RawBSONDocument(from_elements(b"".join(encode({name: value})[4:-1] for name, value in fields)))
