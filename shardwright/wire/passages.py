"""Passages: recognising frames that are equal, but for values that do not matter, to one that was merely passed on.

An application sends the same few commands all the time, with other values. What a daemon does with a command depends
on few of its bytes. So when the ordinary way has served a request by passing it on, the daemon keeps a *passage*: the
bytes of that frame, the places where bytes may differ, and what was done. A frame that has the same bytes everywhere
else is passed on in the same way. All bytes are compared at once, as one long integer with the others masked out.

Whatever can change the decision, other than those bytes and what a passage looks at each time, changes the `Epoch`. A
passage of an earlier epoch is dropped.
"""

from collections.abc import Iterable
from enum import StrEnum
from struct import Struct
from typing import Final, Generic, TypeAlias, TypeVar

from shardwright.wire.frames import OP_MSG

_unpack_int32: Final = Struct("<i").unpack_from

AFTER_ID: Final = Struct("<iiIB").pack(0, OP_MSG, 0, 0)
"""What follows the id of a request that is passed on, up to its body."""

FREE_IN_HEADER: Final = (4, 12)
"""The ids in the header of a frame."""

_FRAME_LENGTH: Final = (0, 4)
_PREFIX: Final = slice(16, 48)
"""Flags, the length of the body, the command's name and part of the collection's: the key for looking up passages."""

FRAME_BYTES_MAX: Final = 2_048
"""Longer frames have no passages, apart from a document at their end."""

_DOCUMENT_BYTES_MIN: Final = 5
_SECTION_LENGTH_BYTES: Final = 4

_PER_PREFIX_MAX: Final = 16
_PREFIXES_MAX: Final = 1_024
_REFUSALS_MAX: Final = 64
"""After so many layouts for which there was no room, those that are known for the prefix are probably out of use."""


class Outcome(StrEnum):
    """What has become of a request, or of a layout, for the metrics."""

    TAKEN = "taken"
    """Served by a passage."""

    LEFT = "left"
    """Begun by a passage, and ended the ordinary way."""

    DECLINED = "declined"
    """Recognised, and served the ordinary way."""

    UNKNOWN = "unknown"
    """Not recognised."""

    LEARNED = "learned"
    """A new passage was kept."""


OUTCOMES: Final = tuple(each.value for each in Outcome)

Range: TypeAlias = tuple[int, int]
"""Where some bytes of a frame begin and end."""


class Epoch:
    """Counts the changes that may make a daemon serve the same bytes differently.

    Attributes:
        number: how many there were.
    """

    __slots__ = ("number",)

    def __init__(self) -> None:
        self.number = 0

    def bump(self) -> None:
        """Drop all passages: the decisions that they repeat may be different from now on."""
        self.number += 1


EPOCH: Final = Epoch()
"""The epoch of this process."""


class Passage:
    """A layout of frames, and the epoch in which it was learned; daemons add what they do with such frames.

    Attributes:
        document_at: where a document of any layout begins that fills the rest of the frame; 0 if there is none.
        epoch: the number of the epoch.
    """

    __slots__ = ("_head_bytes", "_length", "_mask", "_masked", "_section_at", "document_at", "epoch")

    def __init__(
        self, frame: bytes, free: Iterable[Range], epoch: int, document: tuple[int, int] | None = None
    ) -> None:
        """Create it.

        Args:
            frame: a frame of the layout.
            free: where bytes may differ; the header's ids always may.
            epoch: the number of the epoch in which its decision began.
            document: where the length of the last section is, and where the only document in that begins, which may be
                any; None if there is no such document.
        """
        self.epoch = epoch
        self._section_at, self.document_at = document or (0, 0)
        self._length = 0 if document else len(frame)
        self._head_bytes = self.document_at or len(frame)
        decides = bytearray(b"\xff" * self._head_bytes)
        for start, end in (FREE_IN_HEADER, *free):
            decides[start:end] = bytes(end - start)
        if document:
            for start, end in (_FRAME_LENGTH, (self._section_at, self._section_at + _SECTION_LENGTH_BYTES)):
                decides[start:end] = bytes(end - start)
        self._mask = int.from_bytes(decides, "little")
        self._masked = int.from_bytes(frame[: self._head_bytes], "little") & self._mask

    def is_of(self, frame: bytes) -> bool:
        """Whether a whole frame has this layout."""
        return (self._length == len(frame) or self._ends_with_document(frame)) and (
            int.from_bytes(frame[: self._head_bytes], "little") & self._mask == self._masked
        )

    def _ends_with_document(self, frame: bytes) -> bool:
        at, length = self.document_at, len(frame)
        return (
            0 < at <= length - _DOCUMENT_BYTES_MIN
            and _unpack_int32(frame, at)[0] == length - at
            and _unpack_int32(frame, self._section_at)[0] == length - self._section_at
        )


P = TypeVar("P", bound=Passage)


class PassageTable(Generic[P]):
    """The passages of one daemon."""

    def __init__(self) -> None:
        self._passages: dict[bytes, list[P]] = {}
        self._refusals: dict[bytes, int] = {}

    def find(self, frame: bytes) -> P | None:
        """The passage of a frame, if it is known; one of an earlier epoch is dropped."""
        known = self._passages.get(frame[_PREFIX])
        if known is None:
            return None
        for passage in known:
            if passage.is_of(frame):
                if passage.epoch == EPOCH.number:
                    return passage
                known.remove(passage)
                return None
        return None

    def is_wanted(self, frame: bytes) -> bool:
        """Whether to learn a frame that has no passage; not if it is the first with its prefix."""
        prefix = frame[_PREFIX]
        known = self._passages.get(prefix)
        if known is None:
            if len(self._passages) >= _PREFIXES_MAX:
                self._passages.clear()
                self._refusals.clear()
            self._passages[prefix] = []
            return False
        known[:] = [each for each in known if each.epoch == EPOCH.number]
        if len(known) < _PER_PREFIX_MAX:
            return True
        self._refusals[prefix] = refusals = self._refusals.get(prefix, 0) + 1
        if refusals >= _REFUSALS_MAX:
            known.clear()
            self._refusals[prefix] = 0
        return False

    def add(self, frame: bytes, passage: P) -> None:
        """Keep the passage of a frame that `is_wanted`, in place of earlier ones of its layout."""
        known = self._passages.setdefault(frame[_PREFIX], [])
        known[:] = [each for each in known if not each.is_of(frame)]
        known.append(passage)

    def clear(self) -> None:
        """Forget all passages."""
        self._passages.clear()
        self._refusals.clear()
