"""Batch numbers: whether a request is for the next batch, or for the last one again because its reply was lost."""

from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError


class BatchNumbers:
    """Counts batches from 0.

    Args:
        kind: what the batches contain, for the error message.
    """

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._last = -1

    def is_repeated(self, number: int | None) -> bool:
        """Whether the last batch is requested again. None requests the next one, as genuine recipients do.

        Raises:
            CommandError: BadValue, it is neither the last batch nor the next.
        """
        if number is not None and (number < 0 or number not in (self._last, self._last + 1)):
            raise CommandError(
                ErrorCode.BadValue, f"{self._kind} batch {number} was requested, but the last one was {self._last}"
            )
        return number == self._last

    def advance(self) -> None:
        """Record that the next batch has been made."""
        self._last += 1
