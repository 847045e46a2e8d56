"""``$out`` and ``$merge`` after joins of collections elsewhere, compared with one mongod's."""

from collections.abc import Iterator
from typing import Any, Final

import pytest
from pymongo.database import Database
from pymongo.errors import OperationFailure

from tests.integration.sharded import LOWER, UPPER, Document, shard_by_hash, shard_collection
from tests.integration.waiting import eventually
from tests.local_cluster import Client

Pipeline = list[dict[str, Any]]

WRITTEN_NEW: Final = {"db": "written_new", "coll": "target"}
JOIN: Final = {"$lookup": {"from": "other", "localField": "_id", "foreignField": "n", "as": "r"}}
FIRST: Final = {"$set": {"r": {"$first": "$r.b"}}}
LARGE: Final = "x" * 1000
TARGETS: Final[list[Document]] = [{"_id": number, "old": number, "r": -1} for number in range(3, 9)]
CANNOT_BE_SHARDED: Final = 28769
NOT_LAST: Final = 40601


class Databases:
    """A database whose collection ``other`` is sharded, and one with the same documents on one shard.

    For each there is another database to write to; for the joined one it is on the other shard.
    """

    def __init__(self, client: Client) -> None:
        self.joined, self.plain = client["written"], client["written_plain"]
        self.upper, self.plain_upper = client["written_upper"], client["written_plain_upper"]

    @property
    def all(self) -> tuple[Database[Document], ...]:
        """All four."""
        return self.joined, self.plain, self.upper, self.plain_upper

    def written(self, pipeline: Pipeline, last: dict[str, Any], *, is_elsewhere: bool) -> tuple[Any, Any]:
        """Return the error code, if any, and the target's contents, for the joined database and the plain one."""
        places = ((self.joined, self.upper), (self.plain, self.plain_upper))
        joined, plain = (
            self._written(source, upper if is_elsewhere else source, pipeline, last) for source, upper in places
        )
        return joined, plain

    def _written(
        self, source: Database[Document], into: Database[Document], pipeline: Pipeline, last: dict[str, Any]
    ) -> Any:  # noqa: ANN401 - documents, perhaps after a code
        into.target.drop()
        into.target.insert_many(TARGETS)
        [name] = last
        target = {"db": into.name, "coll": "target"}
        stage = {name: target if name == "$out" else {"into": target, **last[name]}}
        code = None
        try:
            assert list(source.local.aggregate([*pipeline, stage])) == []
        except OperationFailure as failure:
            code = failure.code
        return code, list(into.target.find(sort=[("_id", 1)]))


def open_cursors(client: Client) -> int:
    """Return the number of open cursors of the router."""
    total: int = client.admin.command("serverStatus")["metrics"]["cursor"]["open"]["total"]
    return total


@pytest.fixture(scope="module")
def databases(client: Client) -> Iterator[Databases]:
    """See `Databases`."""
    found = Databases(client)
    for database in found.all:
        client.drop_database(database.name)
        primary = UPPER if database is found.upper else LOWER
        client.admin.command("enableSharding", database.name, primaryShard=primary)
    shard_by_hash(found.joined, "other")
    for database in (found.joined, found.plain):
        database.other.insert_many([{"_id": number, "n": number, "b": number % 3} for number in range(12)])
        database.local.insert_many([{"_id": number} for number in range(6)])
    yield found
    for database in found.all:
        client.drop_database(database.name)


@pytest.mark.parametrize("is_elsewhere", [False, True], ids=["here", "elsewhere"])
@pytest.mark.parametrize("not_matched", ["insert", "discard", "fail"])
@pytest.mark.parametrize(
    "matched",
    ["merge", "replace", "keepExisting", "fail", [{"$set": {"new": "$$new.r", "sum": {"$add": ["$old", "$$more"]}}}]],
    ids=lambda matched: matched if isinstance(matched, str) else "pipeline",
)
@pytest.mark.matrix(share=0.6)
def test_merge(databases: Databases, matched: Any, not_matched: str, *, is_elsewhere: bool) -> None:  # noqa: ANN401
    if matched == "fail" and not_matched != "insert":
        pytest.skip("mongod has no such combination")
    merge = {"whenMatched": matched, "whenNotMatched": not_matched}
    if isinstance(matched, list):
        merge["let"] = {"more": "$r"}
    joined, plain = databases.written(
        [JOIN, FIRST, {"$sort": {"_id": 1}}], {"$merge": merge}, is_elsewhere=is_elsewhere
    )
    assert joined == plain


@pytest.mark.parametrize("is_elsewhere", [False, True], ids=["here", "elsewhere"])
def test_out_replaces_the_target(databases: Databases, *, is_elsewhere: bool) -> None:
    joined, plain = databases.written([JOIN, FIRST], {"$out": {}}, is_elsewhere=is_elsewhere)
    assert joined == plain
    assert [each["_id"] for each in joined[1]] == list(range(6))


@pytest.mark.parametrize("is_elsewhere", [False, True], ids=["here", "elsewhere"])
def test_out_leaves_the_target_if_the_pipeline_fails(databases: Databases, *, is_elsewhere: bool) -> None:
    failing = {"$set": {"r": {"$divide": [1, {"$subtract": ["$_id", 5]}]}}}
    joined, plain = databases.written([{"$sort": {"_id": 1}}, JOIN, failing], {"$out": {}}, is_elsewhere=is_elsewhere)
    assert joined == plain
    assert joined[1] == TARGETS


def test_out_leaves_the_target_if_a_later_batch_fails(client: Client, database: Database[Document]) -> None:
    """The mongod that writes reads the results from the router, and gets the error of a batch instead."""
    before = open_cursors(client)
    hashed = shard_by_hash(database)
    hashed.insert_many([{"_id": number, "pad": LARGE} for number in range(2000)])
    database.local.insert_many([{"_id": number, "pad": LARGE} for number in range(2000)])
    database.target.insert_many(TARGETS)
    database.target.create_index("old")
    join = {"$lookup": {"from": "hashed", "localField": "_id", "foreignField": "_id", "as": "r"}}
    failing = {"$set": {"n": {"$divide": [1, {"$subtract": ["$_id", 1999]}]}}}
    with pytest.raises(OperationFailure, match="divide by zero"):
        database.local.aggregate([{"$sort": {"_id": 1}}, join, failing, {"$out": "target"}])
    assert list(database.target.find(sort=[("_id", 1)])) == TARGETS
    assert sorted(database.list_collection_names()) == ["hashed", "local", "target"]
    database.local.aggregate([join, {"$unwind": "$r"}, {"$out": "target"}])
    assert database.target.count_documents({"r.pad": LARGE}) == 2000
    assert "old_1" in database.target.index_information()
    eventually(lambda: open_cursors(client) == before, what="that no cursor is left open")


def test_out_without_documents_empties_the_target(databases: Databases) -> None:
    joined, plain = databases.written([{"$match": {"_id": -1}}, JOIN], {"$out": {}}, is_elsewhere=False)
    assert joined == plain == (None, [])


@pytest.mark.parametrize("stage", [{"$out": WRITTEN_NEW}, {"$merge": {"into": WRITTEN_NEW}}], ids=str)
def test_no_database_is_created(client: Client, databases: Databases, stage: Document) -> None:
    with pytest.raises(OperationFailure) as refused:
        databases.joined.local.aggregate([JOIN, stage])
    assert refused.value.code == 26
    assert "written_new" not in client.list_database_names()


def test_options_of_writes(databases: Databases) -> None:
    """A validator refuses documents unless it is bypassed, and a write concern that cannot be met is reported."""
    joined = databases.joined
    joined.create_collection("strict", validator={"r": "never"})
    with pytest.raises(OperationFailure) as refused:
        joined.local.aggregate([JOIN, {"$merge": "strict"}])
    assert refused.value.code == 121
    joined.local.aggregate([JOIN, {"$merge": "strict"}], bypassDocumentValidation=True)
    assert joined.strict.count_documents({}) == 6
    command = {"aggregate": "local", "pipeline": [JOIN, {"$merge": "strict"}], "cursor": {}}
    reply = joined.command({**command, "bypassDocumentValidation": True, "writeConcern": {"w": 9}})
    assert reply["writeConcernError"]["code"] == 100
    joined.strict.drop()


@pytest.mark.parametrize(
    "last",
    [
        {"$merge": {"into": 5}},
        {"$merge": {"into": "target", "on": "none"}},
        {"$out": ""},
        {"$out": {"db": "x"}},
        {"$out": 1},
    ],
    ids=str,
)
def test_errors_are_those_of_one_mongod(databases: Databases, last: dict[str, Any]) -> None:
    codes = []
    for database in (databases.joined, databases.plain):
        with pytest.raises(OperationFailure) as failure:
            database.local.aggregate([JOIN, last])
        codes.append(failure.value.code)
    assert codes[0] == codes[1]


@pytest.mark.parametrize("last", [{"$merge": "target"}, {"$out": "target"}], ids=lambda last: next(iter(last)))
def test_a_stage_that_writes_is_the_last(databases: Databases, last: dict[str, Any]) -> None:
    for database in (databases.joined, databases.plain):
        with pytest.raises(OperationFailure) as failure:
            database.local.aggregate([JOIN, last, {"$match": {"_id": 1}}])
        assert failure.value.code == NOT_LAST


def test_a_target_that_another_router_has_sharded(databases: Databases, client: Client, other_client: Client) -> None:
    joined = databases.joined
    joined.moved.insert_one({"_id": 100})
    joined.local.aggregate([JOIN, {"$merge": "moved"}])  # this router knows the target now
    shard_collection(other_client[joined.name], "moved", {"_id": 1})
    joined.local.aggregate([JOIN, {"$merge": "moved"}])
    assert joined.moved.count_documents({}) == 7
    with pytest.raises(OperationFailure) as failure:
        joined.local.aggregate([JOIN, {"$out": "moved"}])
    assert failure.value.code == CANNOT_BE_SHARDED
    joined.moved.drop()


def test_a_database_that_another_router_has_recreated(
    databases: Databases, client: Client, other_client: Client
) -> None:
    """The shard that had the target refuses. It has read no result, and all of them go to the other shard."""
    target = client["written_again"].target
    into = {"db": "written_again", "coll": "target"}
    for primary, other, last in (
        (LOWER, UPPER, {"$merge": {"into": into}}),
        (UPPER, LOWER, {"$out": into}),
    ):
        client.drop_database("written_again")
        client.admin.command("enableSharding", "written_again", primaryShard=primary)
        databases.joined.local.aggregate([JOIN, last])
        other_client.drop_database("written_again")
        other_client.admin.command("enableSharding", "written_again", primaryShard=other)
        databases.joined.local.aggregate([{"$match": {"_id": 1}}, JOIN, last])
        assert [each["_id"] for each in target.find()] == [1]
    client.drop_database("written_again")
