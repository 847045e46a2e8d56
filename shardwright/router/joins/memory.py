"""How much a stage may hold in the router.

What exceeds it is not an error: fewer documents are joined at once, in the end a single one (`alone`).
"""

from collections.abc import Iterable
from typing import Final

from shardwright.router.joins.handed_documents import Handed
from shardwright.router.joins.stage_building import COMMAND_BYTES_MAX
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError

MEMORY_BYTES_MAX: Final = 100 * 1024 * 1024
"""What a single document may be joined with unless a ``$unwind`` follows, and what one search may find, as in a mongod
(``internalLookupStageIntermediateDocumentMaxSizeBytes`` and ``internalDocumentSourceGraphLookupMaxMemoryBytes``)."""

BATCH_MATCHES_BYTES_MAX: Final = 32 * 1024 * 1024
"""What is held for the documents of a batch together."""

_DOCUMENT_MATCHES_BYTES_MAX: Final = 8 * 1024 * 1024
"""What a document is handed over with, if both fit into one command."""


class TooLargeError(CommandError):
    """There is more than may be held."""

    def __init__(self, bytes_max: int) -> None:
        super().__init__(
            ErrorCode.QueryExceededMemoryLimitNoDiskUseAllowed,
            f"The documents that a stage needs exceed the memory limit of {bytes_max} bytes",
        )


class Room:
    """What is left of a limit, perhaps for several reads at once."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self.bytes_left = bytes_max

    def take(self, documents: Iterable[bytes]) -> None:
        """Count documents that are held.

        Raises:
            TooLargeError: they are too large.
        """
        self.bytes_left -= sum(map(len, documents))
        if self.bytes_left < 0:
            raise TooLargeError(self._bytes_max)


def check_handed(handed: Iterable[Handed]) -> None:
    """Refuse to hand a document over with more than a command can have.

    Raises:
        TooLargeError: one has more.
    """
    for each in handed:
        size = sum(map(len, each.matches))
        if size > _DOCUMENT_MATCHES_BYTES_MAX or len(each.document) + size + len(each.variables) > COMMAND_BYTES_MAX:
            raise TooLargeError(_DOCUMENT_MATCHES_BYTES_MAX)
