"""Stages of a view's definition that pass through a change of it as they are: decoded, repeated names would be lost."""

from collections.abc import Mapping
from typing import Any

from shardwright.wire.rawbson import ARRAY, OBJECT, find, raw_document, spans


def with_verbatim_stages(fields: Mapping[str, Any], document: bytes) -> dict[str, Any]:
    """The fields of a ``collMod`` with the bytes of the stages of its ``pipeline`` in place of their values.

    Args:
        fields: decoded.
        document: the raw document that holds them.

    Raises:
        InvalidBSONError: it is not well-formed.
    """
    pipeline = find(document, b"pipeline")
    if pipeline is None or pipeline[0] != ARRAY:
        return dict(fields)
    stages = [span for _, span in spans(document, pipeline[2])]
    if any(kind != OBJECT for kind, *_ in stages):
        return dict(fields)  # mongod says what is wrong
    return {**fields, "pipeline": [raw_document(document[start:end]) for _, _, start, end in stages]}
