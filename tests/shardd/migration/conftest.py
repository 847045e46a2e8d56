"""What the tests of migrations share."""

from collections.abc import Iterator

import pytest

from tests.shardd.migration.lone_mongod import LoneMongod, lone_mongod


@pytest.fixture(scope="session")
def lone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoneMongod]:
    """A mongod that belongs to no shard. Tests use databases of their own."""
    with lone_mongod(tmp_path_factory.mktemp("lone")) as mongod:
        yield mongod
