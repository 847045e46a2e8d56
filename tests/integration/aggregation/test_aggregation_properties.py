"""Commands over several shards, above all aggregations, give what one mongod gives that has the same documents."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import bson
import pytest
from bson.objectid import ObjectId
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from pymongo.collection import Collection
from pymongo.database import Database
from pymongo.errors import OperationFailure

from shardwright.wire.error_codes import ErrorCode
from tests.integration.command_strategies import COMMANDS, INDEXES
from tests.integration.document_strategies import DOCUMENTS, FULL_DOCUMENTS
from tests.integration.pipeline_strategies import OPTIONS, pipelines
from tests.integration.result_order import has_ordered_fields, is_in_order
from tests.integration.sharded import LOWER, UPPER, Document
from tests.integration.source_strategies import SEARCH_INDEXES, places, reads_no_collection, takes_no_hint
from tests.integration.stage_strategies import OTHER, SHARDED_OTHER
from tests.local_cluster import Client
from tests.sampling import many

SHARD_KEYS: dict[str, Document] = {
    "ranged": {"k": 1},
    "hashed": {"k": "hashed"},
    "compound": {"a": 1, "k": 1},
}
PLAIN = "plain"
WRITTEN = "written"
NAME = "aggregation_properties"

IN_ANY_ORDER = frozenset({"j", "s"})
"""The fields whose arrays have no definite order."""


@pytest.fixture(scope="module")
def stored(client: Client) -> Iterator[Database[Document]]:
    """A collection for each shard key on both shards, and one to join with."""
    database = client[NAME]
    client.admin.command("enableSharding", database.name, primaryShard=LOWER)
    for name, key in {**SHARD_KEYS, SHARDED_OTHER: {"_id": 1}}.items():
        namespace = f"{database.name}.{name}"
        client.admin.command("shardCollection", namespace, key=key)
        if name != "hashed":
            middle = {field: 10 if field == "k" else 3 for field in key}
            client.admin.command("split", namespace, middle=middle)
            client.admin.command("moveChunk", namespace, find=middle, to=UPPER)
    make_search_indexes(*(database[name] for name in SHARD_KEYS))
    fill_others(database)
    yield database
    client.drop_database(database.name)


@pytest.fixture(scope="module")
def alone(lower_mongod: Client) -> Iterator[Database[Document]]:
    """A database of one mongod alone."""
    database = lower_mongod[f"{NAME}_alone"]
    make_search_indexes(database[PLAIN])
    fill_others(database)
    yield database
    lower_mongod.drop_database(database.name)


def make_search_indexes(*collections: Collection[Document]) -> None:
    """Create what searches by place and by text need."""
    for collection in collections:
        for index in SEARCH_INDEXES:
            collection.create_index(index)


def fill_others(database: Database[Document]) -> None:
    """Insert the documents to join with."""
    for name in (OTHER, SHARDED_OTHER):
        database[name].insert_many([{"_id": n, "a": n, "k": 100 + n} for n in range(8)])


def run(collection: Collection[Document], pipeline: list[Document], options: Document) -> list[Document]:
    """The results of a pipeline, of the database if it reads no collection."""
    if takes_no_hint(pipeline):
        options = {name: value for name, value in options.items() if name != "hint"}
    if reads_no_collection(pipeline):
        return list(collection.database.aggregate(pipeline, **options))
    return list(collection.aggregate(pipeline, **options))


def answer(collection: Collection[Document], pipeline: list[Document], options: Document) -> object:
    """The results, in order if that is definite and otherwise as a multiset, or the code of the error."""
    is_ordered = has_ordered_fields(pipeline)
    try:
        results = [bson.encode({"": _comparable(each, is_ordered)}) for each in run(collection, pipeline, options)]
    except OperationFailure as error:
        return error.code
    return results if is_in_order(pipeline) else sorted(results)


def _comparable(value: Any, is_ordered: bool, name: str = "") -> Any:  # noqa: ANN401 - any value
    """Return a value with everything unordered brought into a definite order."""
    if isinstance(value, dict):
        fields = {field: _comparable(each, is_ordered, field) for field, each in value.items()}
        return fields if is_ordered else dict(sorted(fields.items()))
    if isinstance(value, list):
        elements = [_comparable(each, is_ordered) for each in value]
        return sorted(elements, key=repr) if name in IN_ANY_ORDER else elements
    return value


def fill(database: Database[Document], alone: Database[Document], documents: list[Document]) -> None:
    """Give all collections the same documents, with unique ``k``."""
    rows: list[Any] = [{**each, "_id": n, "k": n, **places(n)} for n, each in enumerate(documents)]
    # A shard key field may not be an array.
    kept = [row for row in rows if not isinstance(row.get("a"), list)]
    for collection in (alone[PLAIN], *(database[name] for name in SHARD_KEYS)):
        collection.delete_many({})
        if kept:
            collection.insert_many(kept)


@contextmanager
def made_indexes(collections: list[Collection[Document]], indexes: list[Any]) -> Iterator[list[str]]:
    """All collections have the indexes during the block; yields the names that may be hinted at."""
    made = [(each, each.create_index(index)) for each in collections for index in indexes]
    try:
        yield sorted({name for _, name in made if "$**" not in name})
    finally:
        for collection, name in made:
            collection.drop_index(name)


WITH_INDEXES = st.tuples(FULL_DOCUMENTS, st.lists(st.sampled_from(INDEXES), min_size=1, max_size=2, unique_by=str))
WITHOUT_INDEXES: st.SearchStrategy[tuple[list[Document], list[Any]]] = st.tuples(DOCUMENTS, st.just([]))


@settings(max_examples=many(250, 13), suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    indexed=st.one_of(WITHOUT_INDEXES, WITH_INDEXES),
    tried=st.lists(st.tuples(pipelines(), OPTIONS), min_size=3, max_size=3),
)
def test_sharded_collections_answer_as_a_mongod_alone(
    stored: Database[Document],
    alone: Database[Document],
    indexed: tuple[list[Document], list[Any]],
    tried: list[tuple[list[Document], Document]],
) -> None:
    documents, indexes = indexed
    fill(stored, alone, documents)
    collections = [stored[name] for name in SHARD_KEYS]
    with made_indexes([alone[PLAIN], *collections], indexes) as hints:
        for number, (pipeline, options) in enumerate(tried):
            if indexes:
                # Without any hint first, so that mongod chooses, and then with each.
                hint = [None, *hints][number % (len(hints) + 1)]
                options = {**options, "hint": hint} if hint else {k: v for k, v in options.items() if k != "hint"}
            expected = answer(alone[PLAIN], pipeline, options)
            for collection in collections:
                found = answer(collection, pipeline, options)
                if reads_no_collection(pipeline) and found == ErrorCode.IllegalOperation:
                    continue  # a router does not run all stages itself
                assert found == expected, (collection.name, indexes, pipeline, options)


WRITING = st.one_of(
    st.just({"$out": WRITTEN}),
    st.builds(
        lambda matched, not_matched: {
            "$merge": {"into": WRITTEN, "whenMatched": matched, "whenNotMatched": not_matched}
        },
        st.sampled_from(["merge", "replace", "keepExisting", [{"$set": {"old": "$b", "b": "$$new.b"}}]]),
        st.sampled_from(["insert", "discard"]),
    ),
)


def written(database: Database[Document], name: str, pipeline: list[Document], options: Document) -> object:
    """Return the contents of a collection after a pipeline has written to it, or the code of the error."""
    target = database[WRITTEN]
    target.drop()
    target.insert_many([{"_id": number, "b": -number, "kept": True} for number in range(0, 20, 3)])
    try:
        run(database[name], pipeline, options)
    except OperationFailure as error:
        return error.code
    is_ordered = has_ordered_fields(pipeline)
    documents = [_comparable(each, is_ordered) for each in target.find()]
    return sorted(bson.encode({"": _without_generated_id(each)}) for each in documents)


def _without_generated_id(document: Document) -> Document:
    return {name: value for name, value in document.items() if not isinstance(value, ObjectId)}


@settings(max_examples=many(80, 4), suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(documents=DOCUMENTS, pipeline=pipelines(), writing=WRITING, options=OPTIONS)
def test_sharded_collections_write_what_a_mongod_alone_writes(
    stored: Database[Document],
    alone: Database[Document],
    documents: list[Document],
    pipeline: list[Document],
    writing: Document,
    options: Document,
) -> None:
    assume(not reads_no_collection(pipeline))  # a router runs such a pipeline itself, and cannot write
    fill(stored, alone, documents)
    whole = [*pipeline, writing]
    expected = written(alone, PLAIN, whole, options)
    for name in SHARD_KEYS:
        assert written(stored, name, whole, options) == expected, (name, whole, options)


def reply_and_rest(collection: Collection[Document], command: Document) -> object:
    """Return the reply and the remaining documents of a command, or the code of its error."""
    name = next(iter(command))
    reply = collection.database.command({**command, name: collection.name}, check=False)
    if not reply["ok"]:
        return reply["code"]
    if name == "find":
        return [bson.encode(each) for each in reply["cursor"]["firstBatch"]]
    if name == "distinct":
        return sorted(bson.encode({"": each}) for each in reply["values"])
    if name == "count":
        return reply["n"]
    left = sorted(bson.encode(each) for each in collection.find())
    return reply["n"], reply.get("nModified"), [each["code"] for each in reply.get("writeErrors", [])], left


@settings(max_examples=many(120, 8), suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    documents=DOCUMENTS,
    indexes=st.lists(st.sampled_from(INDEXES), max_size=2, unique_by=str),
    commands=st.lists(COMMANDS, min_size=5, max_size=5),
)
def test_reads_and_writes_with_any_indexes(
    stored: Database[Document],
    alone: Database[Document],
    documents: list[Document],
    indexes: list[Any],
    commands: list[Document],
) -> None:
    collections = [stored[name] for name in SHARD_KEYS]
    fill(stored, alone, documents)
    with made_indexes([alone[PLAIN], *collections], indexes):
        for command in commands:
            expected = reply_and_rest(alone[PLAIN], command)
            for collection in collections:
                assert reply_and_rest(collection, command) == expected, (collection.name, indexes, command)
