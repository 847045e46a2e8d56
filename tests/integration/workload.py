"""Writers that continue through failures and record which writes were acknowledged."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from bson.objectid import ObjectId
from pymongo import UpdateOne, WriteConcern
from pymongo.errors import PyMongoError

from tests.integration.sharded import Document, Documents
from tests.integration.waiting import eventually
from tests.sampling import many

JOIN_SECONDS_MAX = 60.0

PAUSE_SECONDS = many(0, 10) / 1000
"""The pause of a writer between two documents."""


class Workload:
    """Threads that insert documents and increment a counter in each, with retryable writes and w: majority.

    Attributes:
        acknowledged: the ``_id`` of every document whose insert was acknowledged.
        counted: for every document the number of acknowledged increments.
        unknown: for every document the number of increments that failed and may or may not have been executed.
        errors: the failures, in order.
    """

    def __init__(self, collection: Documents, *, writers: int = 4) -> None:
        self._collection = collection.with_options(write_concern=WriteConcern(w="majority"))
        self._is_stopping = threading.Event()
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._write, args=(number,)) for number in range(writers)]
        self.acknowledged: set[ObjectId] = set()
        self.counted: dict[ObjectId, int] = {}
        self.unknown: dict[ObjectId, int] = {}
        self.errors: list[PyMongoError] = []

    def wait_for_progress(self, writes: int = 20, *, within: float = 60.0) -> None:
        """Wait until ``writes`` more inserts are acknowledged.

        Raises:
            AssertionError: they were not acknowledged in time.
        """
        goal = len(self.acknowledged) + writes
        eventually(lambda: len(self.acknowledged) >= goal, within=within, what="writers get on")

    def stop(self) -> None:
        """Stop the writers and wait until they have ended."""
        self._is_stopping.set()
        for thread in self._threads:
            thread.join(JOIN_SECONDS_MAX)
        assert not any(thread.is_alive() for thread in self._threads)

    def check(self, stored: list[Document]) -> None:
        """Check that all acknowledged writes are there, and none was executed twice."""
        documents = {document["_id"]: document for document in stored}
        assert len(documents) == len(stored), "a document is there twice"
        assert self.acknowledged - documents.keys() == set(), "an acknowledged insert was lost"
        for identity, document in documents.items():
            low = self.counted.get(identity, 0)
            high = low + self.unknown.get(identity, 0)
            assert low <= document.get("times", 0) <= high, f"{document}: {low} to {high} increments"

    def start(self) -> None:
        """Start the writers."""
        for thread in self._threads:
            thread.start()

    def _write(self, writer: int) -> None:
        number = 0
        while not self._is_stopping.wait(PAUSE_SECONDS):
            number += 1
            key = (number * 37 + writer * 250) % 1000
            identity = ObjectId()
            if self._try(partial(self._insert, identity, key)):
                with self._lock:
                    self.acknowledged.add(identity)
            done = self._try(partial(self._increment, identity, key))
            with self._lock:
                counts = self.counted if done else self.unknown
                counts[identity] = counts.get(identity, 0) + 1

    def _insert(self, identity: ObjectId, key: int) -> None:
        self._collection.insert_one({"_id": identity, "key": key})

    def _increment(self, identity: ObjectId, key: int) -> None:
        self._collection.bulk_write([UpdateOne({"_id": identity, "key": key}, {"$inc": {"times": 1}})])

    def _try(self, write: Callable[[], None]) -> bool:
        try:
            write()
        except PyMongoError as error:
            with self._lock:
                self.errors.append(error)
            return False
        return True


@contextmanager
def running_workload(collection: Documents, *, writers: int = 4) -> Iterator[Workload]:
    """Writers that run during the block and have ended after it."""
    workload = Workload(collection, writers=writers)
    workload.start()
    try:
        yield workload
    finally:
        workload.stop()
