"""Reads of sharded time-series collections give what one mongod gives that has the same measurements.

What mongod rewrites in front of the buckets is compared with random pipelines on one shard and on two, sharded by the
metadata and by the time.
"""

import re
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from random import Random
from typing import Any

import bson
import pytest
from bson.son import SON
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pymongo.database import Database
from pymongo.errors import OperationFailure

from shardwright.router.operations.checked_pipeline import EXECUTING
from tests.integration.measurement_strategies import HINTS, READS, Read
from tests.integration.sharded import LOWER, UPPER, Document, Documents, shard_collection
from tests.local_cluster import Client
from tests.sampling import many

NAME = "time_series_pipelines"
ALONE = "alone"
OPTIONS = {"timeField": "at", "metaField": "sensor"}
START = datetime(2024, 1, 1)
MIDDLE = START + timedelta(hours=1)

SHARDED: dict[str, tuple[Document, Document | None]] = {
    "one_shard": ({"sensor.id": 1}, None),
    "by_meta": ({"sensor.id": 1}, {"meta.id": 5}),
    "by_time": ({"at": 1}, {"control.min.at": MIDDLE}),
}
"""The shard key of each collection, and where it is split; those below are on `LOWER`."""

VIEW = "view_by_meta"


def measurements() -> list[Document]:
    """Of ten sensors at different places, in three rooms, during two hours; no two at the same time or place."""
    random = Random(7)
    return [
        {
            "_id": number,
            "at": START + timedelta(seconds=37 * number),
            "sensor": {"id": number % 10, "room": number % 3, "loc": point(number % 10, (number % 10) / 2)},
            "value": random.randint(0, 50),
            "spot": point(random.uniform(0, 10), random.uniform(0, 10)),
        }
        for number in range(200)
    ]


def point(longitude: float, latitude: float) -> Document:
    return {"type": "Point", "coordinates": [longitude, latitude]}


def fill(collection: Documents) -> None:
    collection.create_index([("sensor.id", 1), ("at", 1)], name="by_id")
    for key in ([("at", -1)], [("value", 1)], [("sensor.loc", "2dsphere")], [("spot", "2dsphere")]):
        collection.create_index(key)
    collection.insert_many(measurements())


@pytest.fixture(scope="module")
def stored(client: Client) -> Iterator[Database[Document]]:
    """The collections on shards, a view of one of them, and a collection with one document."""
    database = client[NAME]
    client.admin.command("enableSharding", NAME, primaryShard=LOWER)
    for name, (key, middle) in SHARDED.items():
        shard_collection(database, name, key, timeseries=OPTIONS)
        buckets = f"{NAME}.system.buckets.{name}"
        if middle is not None:
            client.admin.command("split", buckets, middle=middle)
            client.admin.command("moveChunk", buckets, find=middle, to=UPPER)
        fill(database[name])
    database.create_collection(VIEW, viewOn="by_meta", pipeline=[])
    database["other"].insert_one({"_id": -1})
    yield database
    client.drop_database(NAME)


@pytest.fixture(scope="module")
def alone(lower_mongod: Client) -> Iterator[Database[Document]]:
    """A database of one mongod alone, with the same measurements."""
    database = lower_mongod[f"{NAME}_alone"]
    fill(database.create_collection(ALONE, timeseries=OPTIONS))
    database.create_collection(f"view_{ALONE}", viewOn=ALONE, pipeline=[])
    database["other"].insert_one({"_id": -1})
    yield database
    lower_mongod.drop_database(database.name)


def answer(database: Database[Document], command: Document, result: Callable[[Document], object]) -> object:
    """The result in a reply, or the error without what names the collection or says when it was found."""
    try:
        return result(database.command(SON(command)))
    except OperationFailure as error:
        text = str((error.details or {})["errmsg"]).replace(database.name, "db").removeprefix(EXECUTING)
        for name in (*SHARDED, ALONE):
            text = text.replace(f"system.buckets.{name}", "buckets")
        return error.code, text


def results(read: Read) -> Callable[[Document], object]:
    """Return a function that reduces a reply to its results as a multiset, and their order."""

    def taken(reply: Document) -> object:
        found = reply["cursor"]["firstBatch"]
        order = [[value_at(each, path) for path in read.ordered_by] for each in found]
        return sorted(bson.encode({"": with_sorted_fields(each)}) for each in found), order

    return taken


def value_at(document: Any, path: str) -> object:  # noqa: ANN401 - any value
    for name in path.split("."):
        document = document.get(name) if isinstance(document, dict) else None
    return repr(document)


def with_sorted_fields(value: Any) -> Any:  # noqa: ANN401 - any value
    """Buckets have fields in no definite order."""
    if isinstance(value, dict):
        return {name: with_sorted_fields(each) for name, each in sorted(value.items())}
    return [with_sorted_fields(each) for each in value] if isinstance(value, list) else value


def aggregate(name: str, read: Read, options: Document) -> Document:
    return {"aggregate": name, "pipeline": read.pipeline, "cursor": {"batchSize": 1000}, **options}


def is_explained(_: Document) -> bool:
    return True


@settings(max_examples=many(400, 30), suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(read=READS, hint=st.one_of(st.none(), st.none(), HINTS))
def test_reads_of_measurements(stored: Database[Document], alone: Database[Document], read: Read, hint: object) -> None:
    options: Document = {"hint": hint} if hint is not None and read.takes_hint else {}
    expected = answer(alone, aggregate(ALONE, read, options), results(read))
    explained = {"explain": aggregate(ALONE, read, options), "verbosity": "queryPlanner"}
    expected_explained = answer(alone, explained, is_explained)
    for name in (*SHARDED, VIEW):
        command = aggregate(name, read, options)
        assert answer(stored, command, results(read)) == expected, name
        explained = {"explain": command, "verbosity": "queryPlanner"}
        assert answer(stored, explained, is_explained) == expected_explained, name


INDEX = SON([("sensor.id", 1), ("at", 1)])
INDEX_OF_BUCKETS = SON([("meta.id", 1), ("control.min.at", 1), ("control.max.at", 1)])
NO_KEYS: tuple[object, ...] = (
    SON([("at", 1), ("$natural", 1)]),
    SON([("$natural", 1), ("at", 1)]),
    {"at": 1.0},
    {"at": "text"},
    {},
    3,
)


def without_shard(found: object) -> object:
    """An answer without the shard that an error of a router's explanation names."""
    match found:
        case (code, str(text)):
            return code, re.sub(r"^Explain command on shard \w+ failed :: caused by :: ", "", text)
    return found


@pytest.mark.parametrize(
    "hint",
    [INDEX, INDEX_OF_BUCKETS, "by_id", "missing", {"$natural": 1}, {"missing": 1}, {"spot": "2dsphere"}, *NO_KEYS],
    ids=repr,
)
def test_hints(stored: Database[Document], alone: Database[Document], hint: object) -> None:
    """By the key in terms of measurements, which buckets do not have; and by name."""
    query: Document = {"sensor.id": {"$gte": 4}}

    def reads(name: str) -> list[Document]:
        return [
            {"find": name, "filter": query, "batchSize": 1000, "hint": hint},
            {"count": name, "query": query, "hint": hint},
            {"aggregate": name, "pipeline": [{"$match": query}], "cursor": {"batchSize": 1000}, "hint": hint},
        ]

    def found(reply: Document) -> object:
        return reply["n"] if "n" in reply else len(reply["cursor"]["firstBatch"])

    def indexes(reply: Document) -> object:
        return set(re.findall(r"'(?:indexName|stage)': '(by_id|COLLSCAN|spot_2dsphere)'", str(reply)))

    for name in (*SHARDED, VIEW):
        expected = f"view_{ALONE}" if name == VIEW else ALONE
        for read, same in zip(reads(name), reads(expected), strict=True):
            assert answer(stored, read, found) == answer(alone, same, found), read
            explained, same = ({"explain": each, "verbosity": "queryPlanner"} for each in (read, same))
            assert without_shard(answer(stored, explained, indexes)) == answer(alone, same, indexes), read


@pytest.mark.parametrize("hint", [INDEX, INDEX_OF_BUCKETS, "by_id", {"missing": 1}, {"at": "text"}], ids=repr)
def test_hints_of_writes(stored: Database[Document], alone: Database[Document], hint: object) -> None:
    statement = {"q": {"sensor.id": 99}, "hint": hint}

    def writes(name: str) -> list[Document]:
        update = {**statement, "u": {"$set": {"sensor.room": 1}}, "multi": True}
        return [{"delete": name, "deletes": [{**statement, "limit": 0}]}, {"update": name, "updates": [update]}]

    def done(name: str) -> Callable[[Document], object]:
        return lambda reply: (
            reply["n"],
            [(each["code"], each["errmsg"].replace(name, "c")) for each in reply.get("writeErrors", ())],
        )

    for name in SHARDED:
        for write, same in zip(writes(name), writes(ALONE), strict=True):
            expected = answer(alone, same, done(f"{alone.name}.system.buckets.{ALONE}"))
            assert answer(stored, write, done(f"{NAME}.system.buckets.{name}")) == expected, write


@settings(max_examples=many(100, 8), suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(read=READS)
def test_measurements_in_a_union(stored: Database[Document], alone: Database[Document], read: Read) -> None:
    def united(name: str) -> Document:
        union = {"$unionWith": {"coll": name, "pipeline": read.pipeline}}
        return {"aggregate": "other", "pipeline": [union], "cursor": {"batchSize": 1000}}

    expected = answer(alone, united(ALONE), results(read))
    for name in (*SHARDED, VIEW):
        assert answer(stored, united(name), results(read)) == expected, name
