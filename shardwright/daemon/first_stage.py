"""The first stage of a pipeline, on which the handling of some aggregations depends."""

from shardwright.wire.rawbson import ARRAY, OBJECT, spans
from shardwright.wire.request import Request


def first_stage_names(request: Request) -> list[bytes]:
    """Return the field names of a request's first stage, which are one if it is well-formed.

    The list is empty if the request has no pipeline, or if its pipeline is empty or malformed.

    Raises:
        InvalidBSONError: the request is not well-formed BSON.
    """
    pipeline = request.fields.get(b"pipeline")
    if pipeline is None or pipeline[0] != ARRAY:
        return []
    first = next(spans(request.body, pipeline[2]), None)
    if first is None or first[1][0] != OBJECT:
        return []
    return [name for name, _ in spans(request.body, first[1][2])]
