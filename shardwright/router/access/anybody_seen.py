"""Whether this router has ever seen a user or a role: then it is not for strangers to create the first one.

All processes of a router know what one of them has seen, also those that are started later.
"""

from pathlib import Path


class AnybodySeen:
    """Remembers it until the router ends.

    Args:
        directory: a directory that the router's processes share; None for a router of one process.
    """

    def __init__(self, directory: Path | None = None) -> None:
        self._mark = None if directory is None else directory / "anybody-seen"
        self._is_true = False

    def note(self) -> None:
        """There is a user or a role."""
        if not self._is_true:
            self._is_true = True
            if self._mark is not None:
                self._mark.touch()

    @property
    def is_true(self) -> bool:
        """Whether any process of the router has noted it."""
        if not self._is_true and self._mark is not None:
            self._is_true = self._mark.exists()
        return self._is_true
