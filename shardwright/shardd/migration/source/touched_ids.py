"""The ids of documents that were written to and have not been handed out since, in the order of those writes."""

from collections.abc import Mapping
from itertools import islice
from typing import Final

from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError

_ENTRY_BYTES: Final = 150
"""What CPython takes for one entry beside the id itself: the bytes object, the integer, and the place in a dict."""


class TouchedIds:
    """An ordered set. An id is an ``_id`` element as it stands in BSON, its type, name and value.

    Ids that MongoDB holds equal but that are written differently (``1`` and ``1.0``) are different here.

    Args:
        bytes_max: how much memory it may take.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._times: dict[bytes, int] = {}
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._times)

    def add(self, element: bytes, time: int) -> None:
        """The document of this id was written to at a time, packed, that is not before any that was added.

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
        """Take the first ids out: at least one if there is any, at most so many, of about so many bytes."""
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
        """Ids that were taken out are the first again."""
        if taken:
            self._times = {**taken, **{key: time for key, time in self._times.items() if key not in taken}}
            self.bytes = sum(map(len, self._times)) + len(self._times) * _ENTRY_BYTES

    def handed_out(self, followed: int) -> int:
        """Up to which time everything has been taken out, if writes have been added up to the time ``followed``."""
        for time in self._times.values():
            return time - 1
        return followed
