"""The test files of MongoDB's specifications, which come with the source distribution of pymongo."""

from pathlib import Path

from tests.source_distributions import source_distribution


def specifications() -> Path:
    """The folder with the tests of each specification, fetched if it is not there yet."""
    return source_distribution("pymongo") / "test"


if __name__ == "__main__":
    specifications()
