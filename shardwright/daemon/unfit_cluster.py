"""The end of a daemon that must not run in its cluster."""

from typing import Final

EXIT_CODE: Final = 62
"""The daemon's exit code, as of a mongod that finds data files of another version (``EXIT_NEED_DOWNGRADE``)."""


class UnfitClusterError(Exception):
    """The daemon must not run in its cluster; the message gives the reason and the remedy. It ends the process."""


def check_fitness(refusal: str | None) -> None:
    """End this daemon if there is a reason.

    Args:
        refusal: the reason why it must not run in its cluster; None if it may.

    Raises:
        UnfitClusterError: there is a reason.
    """
    if refusal is not None:
        raise UnfitClusterError(refusal)
