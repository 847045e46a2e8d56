"""Decoding documents without losing fields with repeated names.

A dict keeps the last of such fields. A mongod may act on the first, or on all, so code that judges a document has to
see them all.
"""

from collections.abc import Iterator
from typing import Any, Final

import bson
from bson.codec_options import CodecOptions
from bson.errors import InvalidBSON

from shardwright.wire.rawbson.building import wrap_value
from shardwright.wire.rawbson.types import ARRAY, OBJECT, Span
from shardwright.wire.rawbson.values import VALUE_CODEC, decode_leniently, decode_value


class WholeDocument(dict[str, Any]):
    """A decoded document; ``repeated`` keeps the fields hidden by a later one of the same name."""

    __slots__ = ("repeated",)

    def __init__(self) -> None:
        super().__init__()
        self.repeated: list[tuple[str, Any]] = []

    def __setitem__(self, name: str, value: Any) -> None:  # noqa: ANN401 - a BSON value can be anything
        if name in self:
            self.repeated.append((name, self[name]))
        super().__setitem__(name, value)

    def pairs(self) -> Iterator[tuple[str, Any]]:
        """Yield all fields."""
        yield from self.repeated
        yield from self.items()


_CODEC: Final[CodecOptions[Any]] = VALUE_CODEC.with_options(document_class=WholeDocument)


def decode_whole(document: bytes, span: Span) -> Any:  # noqa: ANN401 - a BSON value can be anything
    """Decode one element like `decode_value`, but with `WholeDocument` for its documents."""
    kind, _, value_start, value_end = span
    if kind not in (OBJECT, ARRAY):
        return decode_value(document, span)
    try:
        return bson.decode(wrap_value(kind, document[value_start:value_end]), codec_options=_CODEC)[""]
    except InvalidBSON:
        decoded, _ = decode_leniently(document, span, _CODEC, lambda fields, *_: fields)
        return decoded
