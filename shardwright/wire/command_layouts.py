"""Knowing where the fields of a command are without walking over it, because one like it was there before.

An application sends the same few commands all the time, with other values. Where the elements of a document lie is
decided by their types, their names and the lengths that precede their values, not by the values themselves. So a
command in which all those bytes are as in an earlier one has its fields in the same places. They are compared all at
once, as one long integer with the other bytes masked out: a tenth of the time that a walk takes, which every operation
would take twice, in the router and on the shard.
"""

from collections.abc import Mapping
from typing import Final

from shardwright.wire.rawbson import Span, deciding_bytes, spans

_BEGINNING_BYTES: Final = 24
"""How much of commands finds those that may be alike: their length, their name, and some of the collection's."""

BYTES_MAX: Final = 1_024
"""Longer commands are walked over: there is less to be won, and their layouts would take up memory."""

_FIELDS_MAX: Final = 40
_LAYOUTS_MAX: Final = 2_048

_LENGTH_BYTES: Final = 4
"""Those that a document begins with."""


class CommandLayout:
    """What commands that are alike have in common.

    Attributes:
        fields: where their top-level elements are, by name.
        name: the command.
        db: the database it is for.
    """

    __slots__ = ("_length", "_mask", "_masked", "db", "fields", "name")

    def __init__(self, body: bytes, mask: int, fields: Mapping[bytes, Span], name: str, db: str) -> None:
        self._length = len(body)
        self._mask = mask
        self._masked = int.from_bytes(body, "little") & mask
        self.fields = fields
        self.name = name
        self.db = db

    def is_of(self, body: bytes) -> bool:
        """Whether a command has this layout."""
        return len(body) == self._length and int.from_bytes(body, "little") & self._mask == self._masked


class CommandLayouts:
    """The layouts of the commands that come again and again."""

    def __init__(self) -> None:
        self._layouts: dict[bytes, CommandLayout | None] = {}

    def find(self, body: bytes) -> CommandLayout | None:
        """The layout of a command, if it is known."""
        layout = self._layouts.get(body[:_BEGINNING_BYTES])
        return layout if layout is not None and layout.is_of(body) else None

    def learn(self, body: bytes, fields: Mapping[bytes, Span], name: str, db: str) -> None:
        """Take note of a well-formed command whose layout is not known; the second time that one begins so, it is.

        Of several that begin alike the first stays, so that commands which take turns do not drive each other out.
        """
        beginning = body[:_BEGINNING_BYTES]
        if beginning not in self._layouts:
            if len(body) > BYTES_MAX or len(fields) > _FIELDS_MAX:
                return
            if len(self._layouts) >= _LAYOUTS_MAX:
                self._layouts.clear()
            self._layouts[beginning] = None
        elif self._layouts[beginning] is None:
            mask = _mask(body, fields[b"$db"])
            if mask:
                self._layouts[beginning] = CommandLayout(body, mask, fields, name, db)


COMMAND_LAYOUTS: Final = CommandLayouts()
"""Those of this process."""


def _mask(body: bytes, db: Span) -> int:
    """The bytes of a command that decide where its fields are, its name and its database; 0 if values do too."""
    decides = bytearray(len(body))
    _mark(decides, 0, _LENGTH_BYTES)
    for _, (kind, element_start, value_start, _) in spans(body):
        deciding = deciding_bytes(kind)
        if deciding is None:
            return 0
        _mark(decides, element_start, value_start + deciding)
    _mark(decides, db[2], db[3])
    _mark(decides, len(body) - 1, len(body))
    return int.from_bytes(decides, "little")


def _mark(decides: bytearray, start: int, end: int) -> None:
    decides[start:end] = b"\xff" * (end - start)
