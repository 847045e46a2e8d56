"""The end of a daemon that must not run in its cluster."""

from typing import Final

EXIT_CODE: Final = 62
"""The daemon's exit code, as of a mongod that finds data files of another version (``EXIT_NEED_DOWNGRADE``)."""


class UnfitClusterError(Exception):
    """The daemon must not run in its cluster; the message gives the reason and the remedy. It ends the process."""


def check_fitness(refusal: str | None) -> None:
    """End this daemon with UnfitClusterError if there is a reason for it; None if it may run in its cluster."""
    if refusal is not None:
        raise UnfitClusterError(refusal)
