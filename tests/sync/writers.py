"""A workload at the source: all kinds of writes, transactions and DDL, until it is stopped.

Two things are true of every state of the source. The balances of all accounts have the sum `TOTAL`. Each writer counts
in two collections, one after the other: its number in the first is the one in the second, or one more.
"""

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

from pymongo.errors import ConnectionFailure, OperationFailure, PyMongoError

from tests.sync.running import Client

ACCOUNTS: Final = 10
TOTAL: Final = 1000
PAUSE_SECONDS: Final = 0.02
COUNT_PAUSE_SECONDS: Final = 0.1
DATABASE: Final = "busy"
USER_WRITES_BLOCKED: Final = 371
COUNTED: Final = ("begun", "ended")
"""The collections in which writers count, in their order."""
COUNTERS: Final = 2
DISTRIBUTED: Final = ("items", "accounts")
"""The collections that `distribute` shards, so that transactions are on two shards."""

_PASSING: Final = frozenset({6, 7, 89, 91, 133, 134, 189, 216, 262, 9001, 10107, 11600, 11602, 13435, 13436})
"""Errors of a server or shard that is away for a moment, and of a database that moves."""


def prepare(client: Client, documents: int = 2000) -> None:
    """Create the collections of the workload: two collections, an index, a view."""
    database = client[DATABASE]
    database.items.insert_many(
        [{"_id": each if each % 3 else str(each), "n": each, "in": {"a": each}} for each in range(documents)]
    )
    database.items.create_index("n")
    database.accounts.insert_many([{"_id": each, "balance": TOTAL // ACCOUNTS} for each in range(ACCOUNTS)])
    database.create_collection("few", viewOn="items", pipeline=[{"$match": {"n": 1}}])
    database.create_collection("words", collation={"locale": "en", "strength": 2})
    database.words.insert_many([{"_id": each} for each in "abc"])
    for name in COUNTED:
        database[name].insert_many([{"_id": each, "n": 0} for each in range(COUNTERS)])


def distribute(client: Client, documents: int) -> None:
    """Shard collections of a cluster by ``_id`` before there are documents, with a chunk on either shard.

    Args:
        documents: as for `prepare`.
    """
    first, second = client.config.shards.distinct("_id")[:2]
    client.admin.command("enableSharding", DATABASE, primaryShard=first)
    for name in DISTRIBUTED:
        namespace, middle = f"{DATABASE}.{name}", {"_id": (ACCOUNTS if name == "accounts" else documents) // 2}
        client.admin.command("shardCollection", namespace, key={"_id": 1})
        client.admin.command("split", namespace, middle=middle)
        client.admin.command("moveChunk", namespace, find=middle, to=second)


def passes(error: PyMongoError) -> bool:
    """Whether a write fails only as long as a part of the source is away."""
    if isinstance(error, ConnectionFailure) or error.has_error_label("RetryableWriteError"):
        return True
    return isinstance(error, OperationFailure) and error.code in _PASSING


class Workload:
    """Threads that write.

    Attributes:
        writes: how many were acknowledged.
        is_blocked: whether the source has refused the writes of users.
    """

    def __init__(self, client: Client, seed: int, *, has_ddl: bool = True, survives: bool = False) -> None:
        self.writes = 0
        self.is_blocked = False
        self._client = client
        self._survives = survives
        self._stop = threading.Event()
        self._faults: list[BaseException] = []
        each: list[Callable[[random.Random, int], None]] = [self._write, self._transfer]
        each += [partial(self._count, writer) for writer in range(COUNTERS)]
        if has_ddl:
            each.append(self._change_shape)
        self._threads = [
            threading.Thread(target=self._run, args=(one, random.Random(seed + number)))
            for number, one in enumerate(each)
        ]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Stop all writers, and wait until no write is in progress."""
        self._stop.set()
        for thread in self._threads:
            thread.join()
        assert not self._faults, self._faults

    def _run(self, write: Callable[[random.Random, int], None], choose: random.Random) -> None:
        number = 0
        while not self._stop.is_set():
            number += 1
            try:
                write(choose, number)
            except PyMongoError as error:
                if isinstance(error, OperationFailure) and error.code == USER_WRITES_BLOCKED:
                    self.is_blocked = True
                    return
                if self._survives and passes(error):
                    continue
                if not error.has_error_label("TransientTransactionError"):
                    self._faults.append(error)
                    return
            self.writes += 1
            # As fast as an application, not as fast as both ends can be kept busy on a machine that they share.
            self._stop.wait(PAUSE_SECONDS)

    def _write(self, choose: random.Random, number: int) -> None:
        items = self._client[DATABASE].items
        one = choose.randrange(2500)
        key: Any = one if one % 3 else str(one)
        kind = choose.randrange(8)
        if kind == 0:
            items.replace_one({"_id": key}, {"n": number, "list": [1, 2, 3]}, upsert=True)
        elif kind == 1:
            items.delete_one({"_id": key})
        elif kind == 2:
            items.update_one({"_id": key}, {"$set": {"in.b": number, "in.a": -number, "z": 1, "c": 2}})
        elif kind == 3:
            items.update_one({"_id": key}, {"$push": {"list": number}, "$unset": {"z": ""}})
        elif kind == 4:
            items.update_one({"_id": key}, {"$pop": {"list": -1}})
        elif kind == 5:
            items.update_one({"_id": key}, [{"$set": {"y": number, "x": number}}])
        elif kind == 6:
            items.update_many({"n": {"$lt": 5}}, {"$inc": {"n": 1}})
        else:
            items.insert_one({"n": number, "in": {}})

    def _transfer(self, choose: random.Random, number: int) -> None:
        accounts = self._client[DATABASE].accounts
        giver, taker = choose.sample(range(ACCOUNTS), 2)
        with self._client.start_session() as session, session.start_transaction():
            accounts.update_one({"_id": giver}, {"$inc": {"balance": -number}}, session=session)
            accounts.update_one({"_id": taker}, {"$inc": {"balance": number}}, session=session)

    def _count(self, writer: int, choose: random.Random, number: int) -> None:
        """Count, and repeat it until it is certain that it was done."""
        for name in COUNTED:
            while not self._stop.is_set():
                try:
                    self._client[DATABASE][name].update_one({"_id": writer}, {"$set": {"n": number}})
                    break
                except PyMongoError as error:
                    if not (self._survives and passes(error)):
                        raise
        self._stop.wait(COUNT_PAUSE_SECONDS)

    def _change_shape(self, choose: random.Random, number: int) -> None:
        database = self._client[DATABASE]
        name = f"shape{choose.randrange(3)}"
        kind = choose.randrange(5)
        if kind == 0:
            database[name].insert_many([{"n": each} for each in range(20)])
        elif kind == 1:
            database[name].drop()
        elif kind == 2 and name in database.list_collection_names():
            database[name].rename(f"{name}.renamed", dropTarget=True)
        elif kind == 3:
            database[name].insert_one({"n": 1})
            database[name].create_index([("n", 1), (f"f{choose.randrange(3)}", 1)])
        elif kind == 4 and name in database.list_collection_names():
            database.command("collMod", name, validator={"n": {"$gte": number % 3}})
            database.command("collMod", name, validator={})
        self._stop.wait(0.3)


@contextmanager
def writing(client: Client, seed: int, *, has_ddl: bool = True, survives: bool = False) -> Iterator[Workload]:
    """Write during the block; ``survives`` if the source is killed in it."""
    workload = Workload(client, seed, has_ddl=has_ddl, survives=survives)
    try:
        yield workload
    finally:
        workload.stop()
