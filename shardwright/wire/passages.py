"""Passages: recognising a request that differs from an earlier forwarded one only in values that do not matter.

An application sends the same few commands all the time, with other values. A daemon's decision depends on few of the
bytes. So after the ordinary path has forwarded a request, the daemon keeps a *passage*: the bytes of the frame, the
places where bytes may differ, and the action taken. A frame with the same bytes everywhere else is forwarded in the
same way. All bytes are compared at once, as one long integer with the free ones masked out.

A change that can alter the decision, other than those bytes and a passage's own checks, must bump the `Epoch`. Passages
of an earlier epoch are dropped.
"""

from collections.abc import Iterable
from enum import StrEnum
from struct import Struct
from typing import Final, Generic, NamedTuple, TypeAlias, TypeVar

from shardwright.wire.frames import OP_MSG
from shardwright.wire.message import BODY_AT

_unpack_int32: Final = Struct("<i").unpack_from

AFTER_ID: Final = Struct("<iiIB").pack(0, OP_MSG, 0, 0)
"""Bytes between the id of a forwarded request and its body."""

FREE_IN_HEADER: Final = (4, 12)
"""Range of the ids in the header of a frame."""

_FRAME_LENGTH: Final = (0, 4)
_PREFIX: Final = slice(16, 48)
"""Key for looking up passages: flags, the length of the body, the command's name and part of the collection's."""

_PREFIX_OF_ANY_LENGTH: Final = slice(25, 48)
"""The same key without the length, for inserts in the body."""

_INSERT: Final = b"\x02insert\0"
_GET_MORE: Final = b"\x12getMore\0"

CURSOR_ID_AT: Final = BODY_AT + 4 + len(_GET_MORE)
"""Offset of the cursor's id in the frame of a ``getMore``."""

CURSOR_ID_END: Final = CURSOR_ID_AT + 8
_BEFORE_CURSOR_ID: Final = slice(16, CURSOR_ID_AT)
_AFTER_CURSOR_ID: Final = slice(CURSOR_ID_END, CURSOR_ID_END + 32)
"""The key of a ``getMore``, in two parts because of the cursor's id."""

FRAME_BYTES_MAX: Final = 2_048
"""Limit for frames with passages, not counting a document at their end."""

_DOCUMENT_BYTES_MIN: Final = 5
_LENGTH_BYTES: Final = 4

_PER_PREFIX_MAX: Final = 16
_PREFIXES_MAX: Final = 16_384
_LEARNED_MAX: Final = 16_384
"""Limits of a table, in prefixes and passages. It is cleared beyond them, to bound its memory."""

_REFUSALS_MAX: Final = 64
"""Layouts refused for lack of room before the prefix's present layouts count as unused and are dropped."""


class Outcome(StrEnum):
    """Outcome of a request, or of a new layout, for the metrics."""

    TAKEN = "taken"
    """Served by a passage."""

    LEFT = "left"
    """Begun by a passage, finished on the ordinary path."""

    DECLINED = "declined"
    """Recognised, but served on the ordinary path."""

    UNKNOWN = "unknown"
    """Not recognised."""

    LEARNED = "learned"
    """A new passage was kept."""


OUTCOMES: Final = tuple(each.value for each in Outcome)

Range: TypeAlias = tuple[int, int]
"""Begin and end of some bytes of a frame."""


class InsertedDocument(NamedTuple):
    """The place in a frame of a document of any layout: the only one of its section, or of an array in the body.

    Attributes:
        length_at: offset of the length of the section or array.
        at: offset of the document.
        bytes_after: the number of bytes between its end and the end of the frame; 0 in a section.
    """

    length_at: int
    at: int
    bytes_after: int = 0

    def moved_to_end(self, frame: bytes) -> bytes:
        """Move the document to the end of a frame, leaving all lengths as they were.

        All other bytes are then at the same places in all frames of a layout.
        """
        at, end = self.at, len(frame) - self.bytes_after
        return b"".join((frame[:at], frame[end:], frame[at:end]))

    def moved_back(self, frame: bytes, size: int) -> bytes:
        """Move a document of ``size`` bytes from the end of a request into its array; correct the body's length."""
        at, length = self.at, len(frame) - BODY_AT
        return b"".join(
            (frame[:BODY_AT], length.to_bytes(4, "little"), frame[BODY_AT + 4 : at], frame[-size:], frame[at:-size])
        )

    def places_in(self, frame: bytes, places: Iterable[Range]) -> list[Range]:
        """Translate places after `moved_to_end` into places of the original frame."""
        size = len(frame) - self.bytes_after - self.at if self.is_in_body else 0
        return [(start + size, end + size) if start >= self.at else (start, end) for start, end in places]

    @property
    def is_in_body(self) -> bool:
        """Whether the document is in an array of the body."""
        return self.bytes_after > 0


def is_get_more(frame: bytes) -> bool:
    """Whether a frame whose first section is its body is a ``getMore`` with an id in the usual form."""
    return frame.startswith(_GET_MORE, BODY_AT + 4)


class Epoch:
    """Counter of changes that may make a daemon serve the same bytes differently."""

    __slots__ = ("number",)

    def __init__(self) -> None:
        self.number = 0

    def bump(self) -> None:
        """Invalidate all passages, because their decisions may be outdated."""
        self.number += 1


EPOCH: Final = Epoch()
"""The epoch of this process."""


class Passage:
    """A layout of frames, and the epoch in which it was learned. Daemons add the action for such frames.

    ``document_at`` is the offset of a document of any layout; 0 without one.
    """

    __slots__ = (
        "_bytes_after",
        "_head_bytes",
        "_length",
        "_length_at",
        "_mask",
        "_masked",
        "_tail_mask",
        "_tail_masked",
        "document_at",
        "epoch",
    )

    def __init__(
        self, frame: bytes, free: Iterable[Range], epoch: int, document: InsertedDocument | None = None
    ) -> None:
        """Learn a layout.

        Args:
            free: where bytes may differ; the header's ids always may.
            epoch: the number of the epoch in which its decision began.
            document: the place of a document of any layout, if there is one.
        """
        self.epoch = epoch
        self._length_at, self.document_at, self._bytes_after = document or (0, 0, 0)
        self._length = 0 if document else len(frame)
        self._head_bytes = self.document_at or len(frame)
        decides = bytearray(b"\xff" * len(frame))
        for start, end in (FREE_IN_HEADER, *free):
            decides[start:end] = bytes(end - start)
        if document:
            lengths = [_FRAME_LENGTH, (self._length_at, self._length_at + _LENGTH_BYTES)]
            if document.is_in_body:
                lengths.append((BODY_AT, BODY_AT + _LENGTH_BYTES))
            for start, end in lengths:
                decides[start:end] = bytes(end - start)
        self._mask = int.from_bytes(decides[: self._head_bytes], "little")
        self._masked = int.from_bytes(frame[: self._head_bytes], "little") & self._mask
        tail_at = len(frame) - self._bytes_after
        self._tail_mask = int.from_bytes(decides[tail_at:], "little")
        self._tail_masked = int.from_bytes(frame[tail_at:], "little") & self._tail_mask

    def is_of(self, frame: bytes) -> bool:
        """Whether a whole frame has this layout."""
        return (self._length == len(frame) or self._has_document(frame)) and (
            int.from_bytes(frame[: self._head_bytes], "little") & self._mask == self._masked
        )

    def _has_document(self, frame: bytes) -> bool:
        at, length = self.document_at, len(frame)
        if not self._bytes_after:
            return (
                0 < at <= length - _DOCUMENT_BYTES_MIN
                and _unpack_int32(frame, at)[0] == length - at
                and _unpack_int32(frame, self._length_at)[0] == length - self._length_at
            )
        end = length - self._bytes_after
        return (
            at <= end - _DOCUMENT_BYTES_MIN
            and _unpack_int32(frame, at)[0] == end - at
            and _unpack_int32(frame, self._length_at)[0] == end + 1 - self._length_at
            and _unpack_int32(frame, BODY_AT)[0] == length - BODY_AT
            and int.from_bytes(frame[end:], "little") & self._tail_mask == self._tail_masked
        )


P = TypeVar("P", bound=Passage)


class PassageTable(Generic[P]):
    """The passages of one daemon.

    Each belongs to a permit: bytes of one length that represent the client's privileges.
    """

    def __init__(self) -> None:
        self._passages: dict[bytes, list[P]] = {}
        self._refusals: dict[bytes, int] = {}
        self._learned = 0

    def find(self, frame: bytes, permit: bytes) -> P | None:
        """Find the passage of a frame; one of an earlier epoch is dropped."""
        known = self._passages.get(permit + frame[_PREFIX])
        if known is None:
            known = self._passages.get(permit + frame[_PREFIX_OF_ANY_LENGTH])
        if known is None and is_get_more(frame):
            known = self._passages.get(permit + frame[_BEFORE_CURSOR_ID] + frame[_AFTER_CURSOR_ID])
        if known is None:
            return None
        for passage in known:
            if passage.is_of(frame):
                if passage.epoch == EPOCH.number:
                    return passage
                known.remove(passage)
                return None
        return None

    def is_wanted(self, frame: bytes, permit: bytes) -> bool:
        """Whether to learn a frame without a passage; not for the first one of its permit and prefix."""
        prefix = permit + _prefix_of(frame)
        known = self._passages.get(prefix)
        if known is None:
            if len(self._passages) >= _PREFIXES_MAX or self._learned >= _LEARNED_MAX:
                self.clear()
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

    def add(self, frame: bytes, permit: bytes, passage: P) -> None:
        """Keep the passage of a frame that `is_wanted`, replacing earlier ones of its layout."""
        self._learned += 1
        known = self._passages.setdefault(permit + _prefix_of(frame), [])
        known[:] = [each for each in known if not each.is_of(frame)]
        known.append(passage)

    def clear(self) -> None:
        """Drop all passages."""
        self._passages.clear()
        self._refusals.clear()
        self._learned = 0


def _prefix_of(frame: bytes) -> bytes:
    """Return the prefix under which the passage of a frame is kept."""
    if is_get_more(frame):
        return frame[_BEFORE_CURSOR_ID] + frame[_AFTER_CURSOR_ID]
    is_in_body = _unpack_int32(frame, BODY_AT)[0] == len(frame) - BODY_AT
    return frame[_PREFIX_OF_ANY_LENGTH if is_in_body and frame.startswith(_INSERT, BODY_AT + 4) else _PREFIX]
