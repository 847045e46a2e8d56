"""The arguments of ``$graphLookup``."""

from dataclasses import dataclass
from typing import Any, Final

from shardwright.wire.errors import CommandError
from shardwright.wire.rawbson import OBJECT, decode_value, index

_REQUIRED: Final = (b"from", b"startWith", b"connectFromField", b"connectToField", b"as")
_STRINGS: Final = (b"from", b"as", b"connectFromField", b"connectToField", b"depthField")
_KNOWN: Final = frozenset({*_REQUIRED, *_STRINGS, b"maxDepth", b"restrictSearchWithMatch"})


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
        """Read the raw specification of the stage.

        Raises:
            CommandError: 40100 to 40105, 40185, arguments are missing or wrong.
        """
        fields = index(specification)
        values: dict[bytes, Any] = {}
        for name, span in fields.items():
            if name not in _KNOWN:
                raise CommandError(40104, f"Unknown argument to $graphLookup: {name.decode(errors='replace')}")
            if name != b"startWith":
                values[name] = decode_value(specification, span)
            if name in _STRINGS and not isinstance(values[name], str):
                raise CommandError(40103, f"expected string as argument for {name.decode()}, found: {values[name]!r}")
        if any(name not in fields for name in _REQUIRED):
            raise CommandError(
                40105,
                "$graphLookup requires 'from', 'as', 'startWith', 'connectFromField', and 'connectToField' to be "
                "specified.",
            )
        start, restriction = fields[b"startWith"], fields.get(b"restrictSearchWithMatch")
        if restriction is not None and restriction[0] != OBJECT:
            raise CommandError(40185, "restrictSearchWithMatch must be an object")
        return cls(
            values[b"from"],
            (start[0], specification[start[2] : start[3]]),
            values[b"connectFromField"],
            values[b"connectToField"],
            values[b"as"],
            _depth(values.get(b"maxDepth")),
            values.get(b"depthField"),
            None if restriction is None else specification[restriction[2] : restriction[3]],
        )


def _depth(value: Any) -> int | None:  # noqa: ANN401 - a BSON value can be anything
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise CommandError(40100, f"maxDepth must be numeric, found type: {type(value).__name__}")
    if value < 0:
        raise CommandError(40101, f"maxDepth requires a nonnegative argument, found: {value}")
    if value != int(value):
        raise CommandError(40102, f"maxDepth could not be represented as a long long: {value}")
    return int(value)
