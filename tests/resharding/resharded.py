"""Collections to be resharded, concurrent writers, and the conditions that must hold afterwards."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

from bson import MaxKey, MinKey
from bson.objectid import ObjectId
from pymongo import WriteConcern
from pymongo.errors import PyMongoError

from tests.integration.sharded import Document, Documents, placement
from tests.integration.waiting import eventually
from tests.local_cluster import Client

JOIN_SECONDS_MAX: Final = 120.0
LAST: Final = 1_000


class Resharding(threading.Thread):
    """A ``reshardCollection`` in a thread of its own.

    Attributes:
        error: the error with which it ended; None if it succeeded.
    """

    def __init__(self, client: Client, namespace: str, key: Document, **options: Any) -> None:  # noqa: ANN401
        super().__init__()
        self._client = client
        self._command = {"reshardCollection": namespace, "key": key, **options}
        self.error: PyMongoError | None = None

    def run(self) -> None:
        """Run the command."""
        try:
            self._client.admin.command(self._command)
        except PyMongoError as error:
            self.error = error

    def wait(self) -> PyMongoError | None:
        """Wait for its end; returns its error."""
        self.join(JOIN_SECONDS_MAX)
        assert not self.is_alive()
        return self.error


@contextmanager
def resharding(client: Client, namespace: str, key: Document, **options: Any) -> Iterator[Resharding]:  # noqa: ANN401
    """A ``reshardCollection`` during the block; it has ended after it."""
    thread = Resharding(client, namespace, key, **options)
    thread.start()
    try:
        yield thread
    finally:
        thread.join(JOIN_SECONDS_MAX)


class Writers:
    """Threads that insert, update, delete, and change both shard keys of documents ``{_id, key, other, times}``.

    Every write is retryable and waits for a majority. What was acknowledged is recorded by ``_id``: the document as it
    must be, None if it was deleted; an ``_id`` whose last write failed may be as before or after it.
    """

    def __init__(self, collection: Documents, *, count: int = 3) -> None:
        self._collection = collection.with_options(write_concern=WriteConcern("majority"))
        self._is_stopping = threading.Event()
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._write, args=(number,)) for number in range(count)]
        self.expected: dict[ObjectId, list[Document | None]] = {}
        self.errors: list[PyMongoError] = []
        self.written = 0

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._is_stopping.set()
        for thread in self._threads:
            thread.join(JOIN_SECONDS_MAX)
        assert not any(thread.is_alive() for thread in self._threads)

    def wait_for_progress(self, writes: int = 50, *, within: float = 60.0) -> None:
        goal = self.written + writes
        eventually(lambda: self.written >= goal, within=within, what="writers get on")

    def check(self, stored: list[Document]) -> None:
        found = {document["_id"]: document for document in stored}
        assert len(found) == len(stored), "a document is there twice"
        for identity, expected in self.expected.items():
            assert found.get(identity) in expected, f"{identity}: {found.get(identity)}, not one of {expected}"
        assert found.keys() <= self.expected.keys(), "a document that nobody wrote, or that was deleted for good"

    def _write(self, writer: int) -> None:
        number = writer
        live: list[Document] = []
        while not self._is_stopping.wait(0.002):
            number += 7
            document = {"_id": ObjectId(), "key": number * 37 % LAST, "other": number * 91 % LAST, "times": 0}
            if self._do(None, document, partial(self._collection.insert_one, dict(document))):
                live.append(document)
            if number % 2 and live:
                self._change(live, number)
            if number % 5 == 0 and live:
                victim = live.pop(number % len(live))
                self._do(victim, None, partial(self._collection.delete_one, _named(victim)))

    def _change(self, live: list[Document], number: int) -> None:
        position = number % len(live)
        before = live[position]
        after = {**before, "times": before["times"] + 1}
        if number % 3 == 0:
            after["other"] = (before["other"] + 500) % LAST
        if self._do(before, after, lambda: self._collection.update_one(_named(before), _update(after))):
            live[position] = after
        else:
            live.pop(position)

    def _do(self, before: Document | None, after: Document | None, write: Callable[[], object]) -> bool:
        identity = (after or before or {})["_id"]
        try:
            write()
        except PyMongoError as error:
            with self._lock:
                self.errors.append(error)
                self.expected[identity] = [before, after]
            return False
        with self._lock:
            self.expected[identity] = [after]
            self.written += 1
        return True


def _named(document: Document) -> Document:
    return {"_id": document["_id"], "key": document["key"], "other": document["other"]}


def _update(after: Document) -> Document:
    return {"$set": {"other": after["other"]}, "$inc": {"times": 1}}


@contextmanager
def running_writers(collection: Documents, *, count: int = 3) -> Iterator[Writers]:
    """Writers that run during the block and have ended after it."""
    writers = Writers(collection, count=count)
    writers.start()
    try:
        yield writers
    finally:
        writers.stop()


def new_collection(client: Client, name: str, primary: str = "shard0") -> Documents:
    """A collection sharded by ``key`` on both shards."""
    client.admin.command("enableSharding", name, primaryShard=primary)
    namespace = f"{name}.documents"
    client.admin.command("shardCollection", namespace, key={"key": 1})
    client.admin.command("split", namespace, middle={"key": LAST // 2})
    client.admin.command("moveChunk", namespace, find={"key": LAST - 1}, to="shard1", _waitForDelete=True)
    return client[name].documents


def split_parts(key: str) -> list[Document]:
    """Preset chunks of a key: the lower half on the second shard, the upper one on the first."""
    return [
        {"recipientShardId": "shard1", "min": {key: MinKey()}, "max": {key: LAST // 2}},
        {"recipientShardId": "shard0", "min": {key: LAST // 2}, "max": {key: MaxKey()}},
    ]


def check_nothing_left(client: Client, mongods: list[Client], namespace: str) -> None:
    """Check that no trace of an operation is left, in the catalog or on the shards."""
    db = namespace.partition(".")[0]
    assert list(client.config.reshardingOperations.find()) == []
    assert [each["_id"] for each in client.config.collections.find({"_id": {"$regex": "system.resharding"}})] == []
    entry = client.config.collections.find_one({"_id": namespace})
    assert entry is not None
    assert not entry.keys() & {"reshardingFields", "allowMigrations"}
    uuids = client.config.chunks.distinct("uuid")
    assert set(uuids) <= {each["uuid"] for each in client.config.collections.find()}
    for mongod in mongods:
        names = mongod[db].list_collection_names()
        assert [name for name in names if name.startswith("system.resharding")] == []
        stashes = [name for name in mongod.config.list_collection_names() if "ConflictStash" in name]
        assert stashes == []
        for part in ("donor", "recipient", "recipient.progress_applier"):
            assert list(mongod.config[f"localReshardingOperations.{part}"].find()) == []


__all__ = [
    "LAST",
    "Resharding",
    "Writers",
    "check_nothing_left",
    "new_collection",
    "placement",
    "resharding",
    "running_writers",
    "split_parts",
]
