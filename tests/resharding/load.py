"""A collection to be resharded under load, and what must hold of it afterwards, whatever happened meanwhile."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from typing import Final

from bson.binary import Binary
from pymongo.errors import OperationFailure, PyMongoError

from tests.integration.sharded import LOWER, UPPER, Documents, catalog_entry
from tests.integration.waiting import eventually
from tests.migration.fault_cluster import FaultCluster
from tests.resharding.resharded import Writers, check_nothing_left, new_collection, running_writers
from tests.resharding.watched import Watched, watched

END_SECONDS_MAX: Final = 120.0

_numbers = count(1)


@dataclass(frozen=True)
class Load:
    """Writers, and a change stream, through the second router.

    Attributes:
        collection: sharded by ``key``; ``other`` is to be its new key.
        former_uuid: of the collection.
    """

    cluster: FaultCluster
    collection: Documents
    writers: Writers
    events: Watched
    former_uuid: Binary

    @property
    def namespace(self) -> str:
        """The collection's full name."""
        return self.collection.full_name

    def check(self, error: PyMongoError | None, allowed: frozenset[int]) -> None:
        """Check the collection after an operation.

        Args:
            error: the error of the operation; after a broken connection the outcome is unknown.
            allowed: codes of errors that it may get.

        Raises:
            AssertionError: a write is lost, doubled or shown wrongly; the key is not the one of the outcome; or
                something is left of the operation.
        """
        assert not isinstance(error, OperationFailure) or error.code in allowed, error
        router = self.collection.database.client
        eventually(lambda: not list(router.config.reshardingOperations.find()), within=END_SECONDS_MAX, what="its end")
        self.writers.wait_for_progress(50)
        self.writers.stop()
        stored = list(self.collection.find())
        self.writers.check(stored)
        self.events.check(stored)
        self._wait_coordinator_gone()
        entry = catalog_entry(router, self.namespace)
        assert entry is not None
        assert (entry["key"] == {"other": 1}) == (entry["uuid"] != self.former_uuid)
        if error is None or isinstance(error, OperationFailure):
            assert entry["key"] == ({"other": 1} if error is None else {"key": 1})
        primaries = [f"{shard}.{self.cluster.primary_index(shard)}.mongod" for shard in (LOWER, UPPER)]
        mongods = [self.cluster.client(name) for name in primaries]
        check_nothing_left(router, mongods, self.namespace)
        for mongod in mongods:
            # A rename would be an event of the collection, which a change stream does not survive.
            assert not list(mongod.local["oplog.rs"].find({"op": "c", "o.renameCollection": self.namespace}))

    def _wait_coordinator_gone(self) -> None:
        """Wait until the primary shard has removed its coordinator, which may have waited for the end once more."""
        mongod = self.cluster.client(f"{LOWER}.{self.cluster.primary_index(LOWER)}.mongod")
        documents = mongod.config["system.sharding_ddl_coordinators"]
        eventually(lambda: not list(documents.find()), within=END_SECONDS_MAX, what="the coordinator has ended")


@contextmanager
def under_load(cluster: FaultCluster) -> Iterator[Load]:
    """A collection under load during the block; it is dropped afterwards."""
    router = cluster.router(1)
    collection = new_collection(router, f"resharding_under_load_{next(_numbers)}")
    former = catalog_entry(router, collection.full_name)
    assert former is not None
    with watched(collection) as events, running_writers(collection) as writers:
        writers.wait_for_progress(50)
        yield Load(cluster, collection, writers, events, former["uuid"])
    router.drop_database(collection.database.name)
