"""The version of this package."""

from functools import cache
from importlib.metadata import PackageNotFoundError, version


@cache
def package_version() -> str:
    """Return the installed version."""
    try:
        return version("shardwright")
    except PackageNotFoundError:  # it runs from a directory or archive without metadata
        return "unknown"
