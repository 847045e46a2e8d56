"""The queue of ids of changed documents that have not been handed out since, in the order of the changes."""

from collections.abc import Mapping
from itertools import islice
from typing import Final

from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError

_ENTRY_BYTES: Final = 150
"""Memory used by one entry besides the id itself: the bytes object, the integer, and the slot in the dictionary."""


class TouchedIds:
    """An ordered set of ids. An id is a BSON ``_id`` element: its type, name and value.

    Ids that MongoDB considers equal but whose bytes differ (``1`` and ``1.0``) are different here.

    Args:
        bytes_max: limit for the memory used, in bytes.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._times: dict[bytes, int] = {}
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._times)

    def add(self, element: bytes, time: int) -> None:
        """Add the id of a document that was changed at a time.

        Args:
            element: the ``_id`` element.
            time: the time, packed; not before that of any earlier call.

        Raises:
            CommandError: ExceededMemoryLimit.
        """
        if element in self._times:
            return
        self._times[element] = time
        self.bytes += len(element) + _ENTRY_BYTES
        if self.bytes > self._bytes_max:
            raise CommandError(ErrorCode.ExceededMemoryLimit, "Aborting migration because of high memory usage")

    def take(self, count_max: int, bytes_max: int) -> dict[bytes, int]:
        """Remove and return the first ids with their times: at least one if there is any, within the two limits."""
        taken: dict[bytes, int] = {}
        taken_bytes = 0
        for element, time in islice(self._times.items(), count_max):
            if taken and taken_bytes + len(element) > bytes_max:
                break
            taken[element] = time
            taken_bytes += len(element)
        for element in taken:
            del self._times[element]
        self.bytes -= taken_bytes + len(taken) * _ENTRY_BYTES
        return taken

    def put_back(self, taken: Mapping[bytes, int]) -> None:
        """Return ids to the front of the queue, with their times."""
        if taken:
            self._times = {**taken, **{key: time for key, time in self._times.items() if key not in taken}}
            self.bytes = sum(map(len, self._times)) + len(self._times) * _ENTRY_BYTES

    def handed_out(self, followed: int) -> int:
        """The time up to which all changes have been taken, given that changes up to ``followed`` have been added."""
        for time in self._times.values():
            return time - 1
        return followed
