"""The variables of a ``$lookup``'s ``let``: a mongod computes their values for each document."""

from collections.abc import Mapping, Sequence
from typing import Final

from shardwright.router.joins.environment import JoinEnvironment
from shardwright.router.joins.memory import BATCH_MATCHES_BYTES_MAX, Room
from shardwright.router.joins.stage_building import chunks, documents_stage, raw_stage
from shardwright.wire.rawbson import EMPTY_DOCUMENT, OBJECT, element, encode_elements, from_elements, index

_REMOVED: Final = "$$REMOVE"
"""The value of a variable whose expression has none."""


class LetVariables:
    """The variables of one stage."""

    def __init__(self, environment: JoinEnvironment, expressions: Mapping[bytes, tuple[int, bytes]]) -> None:
        """Prepare them.

        Args:
            environment: of the aggregation.
            expressions: type and raw value of each expression by the variable's name.
        """
        self._environment = environment
        self._names = tuple(expressions)
        object_of_all = from_elements(b"".join(element(name, *each) for name, each in expressions.items()))
        self._stage = raw_stage(b"$replaceWith", object_of_all)

    async def of(self, documents: Sequence[bytes]) -> list[bytes]:
        """For each document, a document with the values of the variables that have one.

        Raises:
            TooLargeError: the values are too large.
            CommandError: an expression failed.
        """
        if not self._names:
            return [EMPTY_DOCUMENT] * len(documents)
        values: list[bytes] = []
        for chunk in chunks(documents):
            stream = await self._environment.compute([documents_stage(chunk), self._stage])
            values += await self._environment.collect(stream, Room(BATCH_MATCHES_BYTES_MAX))
        return values

    def as_let(self, values: bytes) -> dict[bytes, bytes]:
        """The elements of the ``let`` of a command, by name.

        Args:
            values: one of the documents that `of` returns.
        """
        fields = index(values)
        let = {}
        for name in self._names:
            span = fields.get(name)
            if span is None:
                let[name] = encode_elements({name.decode(): _REMOVED})
            else:
                literal = from_elements(element(b"$literal", span[0], values[span[2] : span[3]]))
                let[name] = element(name, OBJECT, literal)
        return let

    def handed_as(self, field: str) -> dict[str, str]:
        """The ``let`` of a stage on documents that have the values in a field."""
        return {name.decode(): f"${field}.{name.decode()}" for name in self._names}
