"""Keeping the bytes of a view's stages in a ``collMod``: decoding would drop repeated field names."""

from collections.abc import Mapping
from typing import Any

from shardwright.wire.rawbson import ARRAY, OBJECT, find, raw_document, spans


def with_verbatim_stages(fields: Mapping[str, Any], document: bytes) -> dict[str, Any]:
    """The fields of a ``collMod``, with the stages of its ``pipeline`` as raw documents.

    Args:
        fields: the decoded fields.
        document: the raw document that they come from.

    Raises:
        InvalidBSONError: the document is not well-formed.
    """
    pipeline = find(document, b"pipeline")
    if pipeline is None or pipeline[0] != ARRAY:
        return dict(fields)
    stages = [span for _, span in spans(document, pipeline[2])]
    if any(kind != OBJECT for kind, *_ in stages):
        return dict(fields)  # malformed, which mongod reports
    return {**fields, "pipeline": [raw_document(document[start:end]) for _, _, start, end in stages]}
