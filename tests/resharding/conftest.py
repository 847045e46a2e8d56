"""Fixtures of several modules."""

from collections.abc import Iterator
from itertools import count

import pytest

from tests.integration.sharded import Documents
from tests.local_cluster import RunningCluster
from tests.resharding.resharded import new_collection

_numbers = count(1)


@pytest.fixture
def collection(cluster: RunningCluster) -> Iterator[Documents]:
    """A collection that is to be resharded, in a database of its own."""
    with cluster.client(w="majority") as client:
        found = new_collection(client, f"resharding_{next(_numbers)}")
        yield found
        client.drop_database(found.database.name)
