"""Documents that get another shard key at the source, for targets whose shard key differs."""

import asyncio
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from bson import decode, encode
from bson.raw_bson import RawBSONDocument
from bson.timestamp import Timestamp
from pymongo import DeleteMany, DeleteOne, ReplaceOne
from pymongo.client_session import ClientSession

from shardwright.sync.batches import folded
from shardwright.sync.changes import Change
from shardwright.sync.plan import Collection
from shardwright.sync.writing import Writer
from tests.sync.conftest import ends_of

NS = "db.orders"
OLD: Mapping[str, Any] = {"_id": 1, "k": 10}
NEW: Mapping[str, Any] = {"_id": 1, "k": 60}

INSERT = Change("insert", Timestamp(1, 1), b"", NS, encode({"k": 60, "_id": 1}), encode(NEW))
DELETE = Change("delete", Timestamp(1, 2), b"", NS, encode({"k": 10, "_id": 1}))


def plain(document: Any) -> dict[str, Any]:  # noqa: ANN401 - a document in either form
    return decode(document.raw) if isinstance(document, RawBSONDocument) else dict(document)


def matches(document: Mapping[str, Any], query: Mapping[str, Any]) -> bool:
    def is_met(name: str, wanted: Any) -> bool:  # noqa: ANN401 - any value
        if name == "$nor":
            return not any(matches(document, each) for each in wanted)
        return bool(document.get(name) == (wanted["$eq"] if isinstance(wanted, dict) else wanted))

    return all(is_met(*each) for each in query.items())


class Documents:
    """A store whose target is a list of documents."""

    id = "1"

    def __init__(self, *documents: Mapping[str, Any]) -> None:
        self.documents = list(documents)

    async def write(self, *arguments: Any, **_: object) -> tuple[Timestamp, list[Any]]:  # noqa: ANN401
        for write in [write for each in arguments[3] for write in each.writes]:
            assert isinstance(write, DeleteMany | DeleteOne | ReplaceOne)
            found = [each for each in self.documents if matches(each, plain(write._filter))]
            for each in found[: None if isinstance(write, DeleteMany) else 1]:
                self.documents.remove(each)
            if isinstance(write, ReplaceOne):
                self.documents.append(plain(write._doc))
        return Timestamp(2, 1), []

    async def fenced(self, *_: object) -> Timestamp:
        return Timestamp(2, 2)

    async def note_failures(self, _: object) -> None:
        """Nothing is refused."""


class Reading(Writer):
    """A writer whose source has only the moved document."""

    async def _read(self, *_: object) -> dict[Any, list[RawBSONDocument]]:
        return {INSERT.id: [RawBSONDocument(encode(NEW))]}


@pytest.mark.parametrize("key", [None, {"other": 1}], ids=["unsharded", "another key"])
@pytest.mark.parametrize("at_once", [True, False], ids=["one batch", "two batches"])
@pytest.mark.parametrize("changes", [(INSERT, DELETE), (DELETE, INSERT)], ids=["insert first", "delete first"])
def test_a_document_that_moves_stays(
    changes: tuple[Change, ...], key: Mapping[str, Any] | None, *, at_once: bool
) -> None:
    target: Any = Documents(OLD, {"_id": 2, "k": 10})
    end: Any = SimpleNamespace()
    writer = Reading(end, end, target)
    writer.collections[NS], writer.source_keys[NS] = Collection(NS, key=key), {"k": 1}

    async def run() -> None:
        for batch in [changes] if at_once else [[each] for each in changes]:
            await writer.apply(folded(batch), {"applied": batch[-1].time})

    asyncio.run(run())
    assert sorted(target.documents, key=lambda each: int(each["_id"])) == [NEW, {"_id": 2, "k": 10}]


def test_a_deletion_at_a_source_without_a_shard_key_removes_the_document() -> None:
    target: Any = Documents(OLD)
    end: Any = SimpleNamespace()
    writer = Writer(end, end, target)
    writer.collections[NS] = Collection(NS, key={"k": 1})
    deletion = Change("delete", Timestamp(1, 1), b"", NS, encode({"_id": 1}))
    asyncio.run(writer.apply(folded([deletion]), {"applied": deletion.time}))
    assert target.documents == []


def test_documents_that_transactions_move_between_shards_stay(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """Their inserts come before their deletions in the change stream of a genuine cluster."""
    with ends_of(request, "genuine-set", tmp_path) as ends:
        source = ends.source
        first, second = source["config"].shards.distinct("_id")[:2]
        source.admin.command("enableSharding", "db", primaryShard=first)
        source.admin.command("shardCollection", NS, key={"k": 1})
        source.admin.command("split", NS, middle={"k": 50})
        source.admin.command("moveChunk", NS, find={"k": 50}, to=second)
        orders = source["db"]["orders"]
        orders.insert_many([{"_id": each, "k": each} for each in range(20)])
        with ends.syncing() as process:
            process.wait_for(lambda progress: progress["canCommit"])

            def move(session: ClientSession, each: int) -> None:
                orders.insert_one({"_id": each, "k": each + 50}, session=session)
                orders.delete_one({"_id": each, "k": each}, session=session)

            with source.start_session() as session:
                for each in range(20):
                    session.with_transaction(partial(move, each=each))
            process.wait_followed(source)
            found = sorted(ends.target["db"]["orders"].find(), key=lambda each: int(each["_id"]))
            assert found == [{"_id": each, "k": each + 50} for each in range(20)]
