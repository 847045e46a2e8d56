"""The arguments of ``$graphLookup``, which a mongod has checked (`operations.checked_pipeline`)."""

from dataclasses import dataclass

from shardwright.router.joins.lookup import string_at
from shardwright.wire.arguments import clamp_int64
from shardwright.wire.rawbson import decode_value, index


@dataclass(frozen=True, slots=True)
class GraphLookup:
    """What a ``$graphLookup`` is to do.

    Attributes:
        collection: the collection that is searched.
        start: type and raw value of the expression that the search starts with.
        connect_from: path of the values that lead to further documents.
        connect_to: path of the values that they lead to.
        into: path of the field for the result.
        depth_max: how many steps to go at most, None for no limit.
        depth_field: path of the field for the number of steps, None for none.
        restriction: a raw filter for all documents found.
    """

    collection: str
    start: tuple[int, bytes]
    connect_from: str
    connect_to: str
    into: str
    depth_max: int | None
    depth_field: str | None
    restriction: bytes | None

    @classmethod
    def parse(cls, specification: bytes) -> "GraphLookup":
        """Read the raw specification of the stage, which is right."""
        fields = index(specification)
        kind, _, start, end = fields[b"startWith"]
        restriction, depth_field = fields.get(b"restrictSearchWithMatch"), fields.get(b"depthField")
        depth_max = fields.get(b"maxDepth")
        return cls(
            string_at(specification, fields[b"from"]),
            (kind, specification[start:end]),
            string_at(specification, fields[b"connectFromField"]),
            string_at(specification, fields[b"connectToField"]),
            string_at(specification, fields[b"as"]),
            None if depth_max is None else clamp_int64(decode_value(specification, depth_max)),
            None if depth_field is None else string_at(specification, depth_field),
            None if restriction is None else specification[restriction[2] : restriction[3]],
        )
