"""Locating the fields of a command without scanning it, by comparing it with a similar earlier command.

An application sends the same few commands all the time, with different values. The positions of a document's elements
depend on their types, their names and the lengths that precede their values, but not on the values themselves. So if
all those bytes equal those of an earlier command, the fields are at the same positions. The bytes are compared all at
once, as one long integer with the other bytes masked out. That takes a tenth of the time of a scan, and every operation
would need two scans, in the router and on the shard.
"""

from collections.abc import Mapping
from typing import Final

from shardwright.wire.rawbson import Span, deciding_bytes, spans

_BEGINNING_BYTES: Final = 24
"""The prefix by which layouts are looked up: the command's length, its name, and part of the collection's name."""

BYTES_MAX: Final = 1_024
"""Longer commands are scanned: they gain less, and their layouts would use more memory."""

_FIELDS_MAX: Final = 40
_LAYOUTS_MAX: Final = 2_048

_LENGTH_BYTES: Final = 4
"""The length at the beginning of a document."""


class CommandLayout:
    """What similar commands have in common.

    Attributes:
        fields: the spans of their top-level elements, by name.
        name: the command.
        db: its database.
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
    """The layouts of commands that are sent repeatedly."""

    def __init__(self) -> None:
        self._layouts: dict[bytes, CommandLayout | None] = {}

    def find(self, body: bytes) -> CommandLayout | None:
        """The layout of a command, if it is known."""
        layout = self._layouts.get(body[:_BEGINNING_BYTES])
        return layout if layout is not None and layout.is_of(body) else None

    def learn(self, body: bytes, fields: Mapping[bytes, Span], name: str, db: str) -> None:
        """Record a well-formed command of unknown layout; its layout is kept from the second one with this prefix on.

        The first layout for a prefix is never replaced, so that alternating commands do not evict each other.
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
"""The layouts of this process."""


def _mask(body: bytes, db: Span) -> int:
    """A mask of the bytes that determine the positions of the fields, the command's name and its database.

    It is 0 if the positions also depend on values.
    """
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
