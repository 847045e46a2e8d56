"""The task that makes the changes, one after the other, and knows the shape of every collection."""

from collections import Counter
from contextlib import suppress
from datetime import datetime, timedelta
from random import Random
from typing import Final

from pymongo.database import Database
from pymongo.errors import OperationFailure

from shardwright.wire.error_codes import ErrorCode
from tests.integration.random_ddl.ledger import Ledger, gone, renamed
from tests.integration.random_ddl.shapes import KEYS, Key, Shape, index_name
from tests.integration.random_ddl.writers import VALUES_OF_A, VALUES_OF_B
from tests.integration.sharded import LOWER, UPPER, Document, catalog_entry, chunks
from tests.local_cluster import Client

NAMES: Final = ("x", "y", "z")
SERIES: Final = "series"
BUCKETS: Final = f"system.buckets.{SERIES}"
START: Final = datetime(2024, 1, 1)

NOT_NOW: Final = frozenset(
    {
        *(ErrorCode.NamespaceNotFound, ErrorCode.NamespaceExists, ErrorCode.NamespaceNotSharded),
        *(ErrorCode.CommandFailed, ErrorCode.IllegalOperation, ErrorCode.InvalidOptions, ErrorCode.BadValue),
        *(ErrorCode.ConflictingOperationInProgress, ErrorCode.LockBusy, ErrorCode.IndexNotFound),
    }
)
"""Errors of a change that is not possible at the moment; it then has no effect."""


class Changes:
    """Random changes of two databases.

    Args:
        routers: clients of the routers, used in turn.
        random: makes all choices.
        dbs: names of the databases.
        ledger: records the effects on documents.

    Attributes:
        made: number of changes made, by kind.
    """

    def __init__(self, routers: tuple[Client, Client], random: Random, dbs: tuple[str, str], ledger: Ledger) -> None:
        self._routers, self._random, self._dbs, self._ledger = routers, random, dbs, ledger
        self.made: Counter[str] = Counter()
        self.shapes: dict[str, Shape] = {place: Shape() for place in self.places}
        self._measured: dict[str, int] = {}

    @property
    def places(self) -> list[str]:
        """The full names of all collections that are changed and written to."""
        return [f"{db}.{name}" for db in self._dbs for name in NAMES]

    def step(self) -> None:
        """Make one random change, which may turn out not to be possible now."""
        often = (self.shard, self.split, self.rename, self.reshard, self.index, self.modify)
        rarely = (self.rename_elsewhere, self.drop, self.refine, self.create, self.drop_index, self.move_primary)
        series = (self.create_series, self.shard_series, self.measure, self.measure, self.drop_series)
        kind = self._random.choice((*often, *often, *rarely, *series, self.drop_database))
        try:
            kind()
        except OperationFailure as failure:
            if failure.code not in NOT_NOW:
                raise
        else:
            self.made[kind.__name__] += 1

    def check(self) -> None:
        """Compare the shape of every collection, and the measurements, with the model.

        Raises:
            AssertionError: they differ.
        """
        for router in self._routers:
            for place, shape in self.shapes.items():
                shape.check(router, place)
            for db in self._dbs:
                numbers = sorted(each["number"] for each in router[db][SERIES].find())
                expected = self._measured.get(db, 0)
                assert numbers == list(range(expected)), f"{db}: {len(numbers)}, not {expected}"

    # Collections

    def create(self) -> None:
        place = self._any()
        self._database(place).command("create", place.partition(".")[2], validationLevel="moderate")
        self.shapes[place].level = "moderate"  # an equal one may have existed

    def drop(self) -> None:
        place = self._any()
        with self._ledger.change(gone(lambda name: name == place)):
            self._database(place).drop_collection(place.partition(".")[2])
        self.shapes[place] = Shape()

    def drop_database(self) -> None:
        db = self._dbs[1]
        with self._ledger.change(gone(lambda name: name.startswith(f"{db}."))):
            self._router.drop_database(db)
        self._measured.pop(db, None)
        self.shapes |= {f"{db}.{name}": Shape() for name in NAMES}

    def rename(self) -> None:
        names = self._random.sample(NAMES, 2)
        db = self._random.choice(self._dbs)
        self._rename(f"{db}.{names[0]}", f"{db}.{names[1]}")

    def rename_elsewhere(self) -> None:
        dbs = self._random.sample(self._dbs, 2)
        self._rename(f"{dbs[0]}.{self._random.choice(NAMES)}", f"{dbs[1]}.{self._random.choice(NAMES)}")

    def _rename(self, source: str, target: str) -> None:
        with self._ledger.change(renamed(source, target)):
            self._router.admin.command("renameCollection", source, to=target, dropTarget=True)
        self.shapes[target], self.shapes[source] = self.shapes[source], Shape()

    def modify(self) -> None:
        place, level = self._any(), self._random.choice(["moderate", "strict"])
        self._database(place).command("collMod", place.partition(".")[2], validationLevel=level)
        self.shapes[place].level = level

    # Keys and chunks

    def shard(self) -> None:
        place, key = self._any(), self._random.choice(KEYS)
        if self.shapes[place].key is not None:
            return
        self._index(place, key)
        self._router.admin.command("shardCollection", place, key=key)
        self.shapes[place].key = key

    def refine(self) -> None:
        place = self._any()
        if self.shapes[place].key != KEYS[0]:
            return
        self._index(place, KEYS[1])
        self._router.admin.command("refineCollectionShardKey", place, key=KEYS[1])
        self.shapes[place].key = KEYS[1]

    def reshard(self) -> None:
        place, key = self._any(), self._random.choice(KEYS)
        self._router.admin.command("reshardCollection", place, key=key, numInitialChunks=2, zones=[])
        self.shapes[place].reshard(key)

    def split(self) -> None:
        place = self._any()
        values = {"a": self._random.randrange(VALUES_OF_A), "b": self._random.randrange(VALUES_OF_B), "_id": 0}
        key = self.shapes[place].key
        if key is None or "hashed" in key.values():
            return
        middle = {name: values[name] for name in key}
        if all(chunk["min"] != middle for chunk in chunks(self._router, place)):
            self._router.admin.command("split", place, middle=middle)

    # Indexes

    def index(self) -> None:
        self._index(self._any(), self._random.choice([{"b": 1}, {"times": 1}]))

    def drop_index(self) -> None:
        place = self._any()
        name = self._random.choice(["b_1", "times_1"])
        self._database(place).command("dropIndexes", place.partition(".")[2], index=name)
        self.shapes[place].indexes.discard(name)

    def _index(self, place: str, key: Key) -> None:
        if key == {"_id": "hashed"} or "_id" not in key or len(key) > 1:
            self._database(place)[place.partition(".")[2]].create_index(list(key.items()))
            self.shapes[place].indexes.add(index_name(key))

    # Databases and time series

    def move_primary(self) -> None:
        to = self._random.choice([LOWER, UPPER])
        self._router.admin.command("movePrimary", self._random.choice(self._dbs), to=to)

    def create_series(self) -> None:
        db = self._random.choice(self._dbs)
        options = {"timeField": "at", "metaField": "sensor"}
        self._router[db].command("create", SERIES, timeseries=options)
        self._measured.setdefault(db, 0)  # an equal one may have existed

    def shard_series(self) -> None:
        db = self._random.choice(self._dbs)
        if db in self._measured and catalog_entry(self._router, f"{db}.{BUCKETS}") is None:
            self._router.admin.command("shardCollection", f"{db}.{SERIES}", key={"sensor": 1})
            with suppress(OperationFailure):  # another run of this has made the bound
                self._router.admin.command("split", f"{db}.{BUCKETS}", middle={"meta": 5})

    def measure(self) -> None:
        db = self._random.choice(self._dbs)
        if db not in self._measured:
            return
        numbers = range(self._measured[db], self._measured[db] + 20)
        measured = [{"at": START + timedelta(minutes=n), "sensor": n % 10, "number": n} for n in numbers]
        self._router[db][SERIES].insert_many(measured)
        self._measured[db] = numbers.stop

    def drop_series(self) -> None:
        db = self._random.choice(self._dbs)
        if self._measured.pop(db, None) is not None:
            self._router[db].drop_collection(SERIES)

    # Choices

    @property
    def _router(self) -> Client:
        return self._random.choice(self._routers)

    def _any(self) -> str:
        return self._random.choice(self.places)

    def _database(self, place: str) -> Database[Document]:
        return self._router[place.partition(".")[0]]
