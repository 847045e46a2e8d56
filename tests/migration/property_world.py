"""A sharded collection and its model, for tests that apply the same operations to both."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import pytest
from bson import Int64
from pymongo.collection import Collection
from pymongo.errors import BulkWriteError, DuplicateKeyError, OperationFailure

from shardwright.sharding.shard_key import ShardKeyPattern
from shardwright.wire.rawbson import encode_document
from tests.integration.sharded import LOWER, UPPER, chunks
from tests.migration.fault_cluster import FaultCluster
from tests.migration.invariants import check_collection

Document = dict[str, Any]

KEYS: Final = 24
"""Values of shard keys are from 0 up to this number."""

DUPLICATE_KEY: Final = 11000
"""The error code with which routers refuse to give a document a key that another shard owns."""


@dataclass(frozen=True)
class Kind:
    """The sharding of a collection.

    Attributes:
        key: the shard key pattern.
        unique: the key of a unique index, None if there is none.
        splits: its first split points.
    """

    name: str
    key: Mapping[str, Any]
    splits: tuple[Document, ...]
    unique: tuple[str, ...] | None = None

    def bound(self, key: int) -> Document:
        """A bound between chunks for each value of a shard key; for a hashed key it is an arbitrary hash."""
        if "hashed" in self.key.values():
            return {"k": Int64((key + 1) * (1 << 64) // (KEYS + 1) - (1 << 63))}
        return dict.fromkeys(self.key, key)


KINDS: Final = (
    Kind("ranged", {"k": 1}, ({"k": 8}, {"k": 16})),
    Kind("hashed", {"k": "hashed"}, ()),
    Kind("compound", {"k": 1, "j": 1}, ({"k": 8, "j": 1}, {"k": 16, "j": 0})),
    Kind("unique", {"k": 1}, ({"k": 12},), ("k", "u")),
)


class PropertyWorld:
    """The collection and the model of one example.

    Attributes:
        model: the expected documents, by ``_id``.
        is_changing: whether chunks may change their owners at the moment.
    """

    def __init__(self, cluster: FaultCluster, kind: Kind, namespace: str) -> None:
        self.cluster, self.kind, self.namespace = cluster, kind, namespace
        self.model: dict[int, Document] = {}
        self.is_changing = False
        self._next = 0
        database, _, name = namespace.partition(".")
        self._routers: list[Collection[Document]] = [cluster.router(index)[database][name] for index in range(2)]
        self._turn = 0
        self._pattern = ShardKeyPattern.from_mapping(kind.key)
        self._create(database)

    def _create(self, database: str) -> None:
        admin = self.cluster.router().admin
        admin.command("enableSharding", database, primaryShard=LOWER)
        admin.command("shardCollection", self.namespace, key=dict(self.kind.key))
        if self.kind.unique is not None:
            self._routers[0].create_index([(field, 1) for field in self.kind.unique], unique=True)
        for bound in self.kind.splits:
            admin.command("split", self.namespace, middle=bound)
        if self.kind.splits:
            admin.command("moveChunk", self.namespace, find=self.kind.splits[-1], to=UPPER)

    @property
    def chunks(self) -> list[Document]:
        """The present chunks."""
        return chunks(self.cluster.router(), self.namespace)

    def is_at_least(self, bound: Document, other: Document) -> bool:
        """Whether a bound between chunks is not below another one."""
        first, second = (self._pattern.key_bytes(encode_document(each)) for each in (bound, other))
        return first >= second

    def check(self) -> None:
        """Check everything that must hold when there is no migration in progress.

        Raises:
            AssertionError: something does not hold.
        """
        check_collection(self.cluster, self.namespace, self.model)

    def _collection(self) -> Collection[Document]:
        """The collection through the next router; routers take turns."""
        self._turn += 1
        return self._routers[self._turn % 2]

    # Operations on both

    def insert(self, k: int, j: int, u: int) -> None:
        """Insert a document; a value that exists in the unique index is refused."""
        self._next += 1
        document = {"_id": self._next, "k": k, "j": j, "u": u, "v": 0}
        try:
            self._collection().insert_one(document)
        except DuplicateKeyError:
            assert self._is_taken(document), f"{document} was refused"
        else:
            assert not self._is_taken(document), f"{document} was accepted"
            self.model[self._next] = document

    def insert_again(self, choice: int) -> None:
        """Insert a document that exists: it is refused."""
        document = self._chosen(choice)
        if document is None:
            return
        with pytest.raises(BulkWriteError) as caught:
            self._collection().insert_many([document, document], ordered=False)
        details = caught.value.details or {}
        assert [each["code"] for each in details["writeErrors"]] == [11000, 11000]

    def update_one(self, choice: int) -> None:
        """Change one document in place."""
        document = self._chosen(choice)
        if document is not None:
            result = self._collection().update_one(self._query(document), {"$inc": {"v": 1}})
            assert (result.matched_count, result.modified_count) == (1, 1), document
            document["v"] += 1

    def replace_one(self, choice: int) -> None:
        """Replace one document with a bigger one."""
        document = self._chosen(choice)
        if document is not None:
            document.update(v=document["v"] + 1, text="x" * 200)
            assert self._collection().replace_one(self._query(document), document).modified_count == 1

    def modify_one(self, choice: int) -> None:
        """Run a findAndModify, which returns the document before the update."""
        document = self._chosen(choice)
        if document is not None:
            before = dict(document)
            document["v"] += 1
            found = self._collection().find_one_and_update(self._query(document), {"$inc": {"v": 1}})
            assert found == before

    def update_many(self, low: int, high: int) -> None:
        """Update all documents in a range of keys, wherever they are."""
        matched = self._in_range(low, high)
        result = self._collection().update_many({"k": {"$gte": low, "$lt": high}}, {"$inc": {"v": 1}})
        for document in matched:
            document["v"] += 1
        assert (result.matched_count, result.modified_count) == (len(matched), len(matched)), result.raw_result

    def update_everything(self) -> None:
        """Update all documents by a filter without the shard key."""
        result = self._collection().update_many({"v": {"$gte": 0}}, {"$inc": {"v": 1}})
        for document in self.model.values():
            document["v"] += 1
        assert (result.matched_count, result.modified_count) == (len(self.model), len(self.model)), result.raw_result

    def delete_one(self, choice: int) -> None:
        """Delete one document."""
        document = self._chosen(choice)
        if document is not None:
            assert self._collection().delete_one(self._query(document)).deleted_count == 1
            del self.model[document["_id"]]

    def delete_many(self, low: int, high: int) -> None:
        """Delete all documents in a range of keys."""
        matched = self._in_range(low, high)
        result = self._collection().delete_many({"k": {"$gte": low, "$lt": high}})
        for document in matched:
            del self.model[document["_id"]]
        assert result.deleted_count == len(matched)

    def change_key(self, choice: int, k: int) -> None:
        """Change one document's shard key, perhaps to one of another shard."""
        document = self._chosen(choice)
        if document is None or document["k"] == k:
            return
        moved, refusal = {**document, "k": k}, None
        try:
            result = self._collection().update_one(self._query(document), {"$set": {"k": k}})
        except OperationFailure as error:
            refusal = error
        if refusal is None:
            assert result.modified_count == 1, document
            document["k"] = k
        else:
            assert refusal.code == DUPLICATE_KEY, refusal
            # An orphan with the same _id, which waits to be deleted, keeps the document from coming back.
            assert self._is_taken(moved) or "There is either an orphan" in str(refusal), f"{moved} was refused"

    def read(self, low: int, high: int) -> None:
        """Check that find, count and distinct see each document of the model exactly once."""
        matched = {document["_id"]: document for document in self._in_range(low, high)}
        query = {"k": {"$gte": low, "$lt": high}}
        found = list(self._collection().find(query))
        assert len(found) == len(matched), f"{found} of {matched}"
        assert {document["_id"]: document for document in found} == matched
        assert self._collection().count_documents(query) == len(matched)
        assert self._collection().estimated_document_count() >= 0
        assert sorted(self._collection().distinct("_id")) == sorted(self.model)

    def _query(self, document: Document) -> Document:
        return {field: document[field] for field in (*self.kind.key, "_id")}

    def _chosen(self, choice: int) -> Document | None:
        documents = list(self.model.values())
        return documents[choice % len(documents)] if documents else None

    def _in_range(self, low: int, high: int) -> list[Document]:
        return [document for document in self.model.values() if low <= document["k"] < high]

    def _is_taken(self, document: Document) -> bool:
        unique = self.kind.unique
        return unique is not None and any(
            all(other[field] == document[field] for field in unique)
            for other in self.model.values()
            if other["_id"] != document["_id"]
        )
