"""Which batch is asked for: the next one, or again the last one, whose answer was lost."""

from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError


class BatchNumbers:
    """Counts batches from 0.

    Args:
        kind: what the batches are of, for the error.
    """

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._last = -1

    def is_repeated(self, number: int | None) -> bool:
        """Whether the last batch is asked for again. None asks for the next one, as genuine recipients do.

        Raises:
            CommandError: BadValue, it is neither that one nor the next.
        """
        if number is not None and (number < 0 or number not in (self._last, self._last + 1)):
            raise CommandError(
                ErrorCode.BadValue, f"{self._kind} batch {number} is asked for when {self._last} was the last one"
            )
        return number == self._last

    def advance(self) -> None:
        """The next batch has been made."""
        self._last += 1
