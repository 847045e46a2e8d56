"""The demo's live migration: a chunk moves while a client keeps writing to it."""

import threading
import time
from dataclasses import dataclass
from typing import Any

from pymongo import MongoClient
from pymongo.collection import Collection

from shardwright.deploy.chunk_map import Chunk

Client = MongoClient[dict[str, Any]]


@dataclass
class LiveMove:
    """A move as seen by a client.

    Attributes:
        writes: number of writes acknowledged during the move.
        longest_write: the duration of the longest write, in seconds.
        counted: the sum of all counters after the move, equal to ``writes`` if no write was lost or executed twice.
    """

    seconds: float
    writes: int
    longest_write: float
    counted: int


class _Writer(threading.Thread):
    """A thread that increments the counter of one document after another until stopped."""

    def __init__(self, collection: Collection[dict[str, Any]], keys: list[dict[str, Any]]) -> None:
        super().__init__()
        self._collection = collection
        self._keys = keys
        self._is_stopped = threading.Event()
        self.error: Exception | None = None
        self.writes = 0
        self.longest = 0.0

    def run(self) -> None:
        try:
            while not self._is_stopped.is_set():
                started = time.monotonic()
                self._collection.update_one(self._keys[self.writes % len(self._keys)], {"$inc": {"moved": 1}})
                self.longest = max(self.longest, time.monotonic() - started)
                self.writes += 1
        except Exception as error:
            self.error = error

    def stop(self) -> None:
        """Stop after the current write; raises the error if writing has already failed."""
        self._is_stopped.set()
        self.join()
        if self.error is not None:
            raise self.error


def move_while_writing(client: Client, namespace: str, chunk: Chunk, to: str, query: dict[str, Any]) -> LiveMove:
    """Move a chunk to another shard while writing to its documents that match ``query``."""
    db, _, name = namespace.partition(".")
    collection = client[db][name]
    writer = _Writer(collection, list(collection.find(query, {"country": 1})))
    writer.start()
    try:
        started = time.monotonic()
        client.admin.command("moveChunk", namespace, bounds=[chunk.minimum, chunk.maximum], to=to)
        seconds = time.monotonic() - started
    finally:
        writer.stop()
    counters = collection.find({"moved": {"$gt": 0}}, {"moved": 1})
    return LiveMove(seconds, writer.writes, writer.longest, sum(document["moved"] for document in counters))
