"""Keeping the bytes of documents in an argument, as a view's stages: decoding would drop repeated field names."""

from collections.abc import Mapping
from typing import Any

from shardwright.wire.rawbson import ARRAY, OBJECT, find, raw_document, spans


def with_verbatim(fields: Mapping[str, Any], name: bytes, document: bytes) -> dict[str, Any]:
    """The fields of a command, with the documents of one array as raw documents.

    Args:
        fields: the decoded fields.
        name: the array's.
        document: the raw document that they come from.

    Raises:
        InvalidBSONError: the document is not well-formed.
    """
    array = find(document, name)
    if array is None or array[0] != ARRAY:
        return dict(fields)
    elements = [span for _, span in spans(document, array[2])]
    if any(kind != OBJECT for kind, *_ in elements):
        return dict(fields)  # malformed, which mongod reports
    return {**fields, name.decode(): [raw_document(document[start:end]) for _, _, start, end in elements]}
