"""Mutation of single bytes in well-formed commands."""

from collections.abc import Iterator
from random import Random

from shardwright.wire.rawbson import InvalidBSONError, index, spans

_TYPES = bytes([*range(1, 20), 0x7F, 0xFF])
_BYTES = bytes([0, 1, 2, 5, 0x7F, 0x80, 0xC3, 0xFE, 0xFF])


class Mutations:
    """Changes bytes of commands at random.

    Args:
        seed: the same seed gives the same changes.
    """

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)

    def of(self, body: bytes, *, keeps_target: bool) -> bytes:
        """A command body with one to three bytes changed, except its length, its first name and its database.

        Args:
            body: the command.
            keeps_target: whether the value of the first field, the collection, is kept too.
        """
        fields = list(index(body).values())
        database = index(body)[b"$db"]
        first_kept = fields[0][3] if keeps_target else fields[0][2]
        positions = [at for at in range(first_kept, len(body) - 1) if not database[1] <= at < database[3]]
        positions += [fields[0][1]]
        changed = bytearray(body)
        for _ in range(self._random.randint(1, 3)):
            if self._random.random() < 0.3:
                at = self._random.choice([at for at in element_starts(body) if at in positions] or positions)
                changed[at] = self._random.choice(_TYPES)
            else:
                at = self._random.choice(positions)
                changed[at] = self._random.choice((self._random.choice(_BYTES), self._random.randrange(256)))
        return bytes(changed)


def element_starts(document: bytes, start: int = 0) -> Iterator[int]:
    """The positions of the type bytes of all elements, at any depth."""
    for _, (kind, element_start, value_start, _) in spans(document, start):
        yield element_start
        if kind in (3, 4):
            try:
                yield from element_starts(document, value_start)
            except InvalidBSONError:
                return
