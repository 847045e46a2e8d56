"""Documents that a donor hands over to a recipient: each document to exactly one, orphans to none."""

from uuid import uuid4

import bson
from bson import MaxKey, MinKey
from bson.objectid import ObjectId
from bson.timestamp import Timestamp
from hypothesis import given
from hypothesis import strategies as st

from shardwright.sharding.chunks import ChunkPlacement
from shardwright.sharding.namespace import Namespace
from shardwright.sharding.resharding_participation import Ownership, is_temporary, stash_namespace, temporary_namespace
from shardwright.sharding.routing_table import RoutingTable, ShardedCollection
from shardwright.sharding.shard_key import ShardKeyPattern

SHARDS = ("s0", "s1")


def table(field: str) -> RoutingTable:
    """Negative values on the first shard, the others on the second."""
    pattern = ShardKeyPattern.from_mapping({field: 1})
    collection = ShardedCollection(Namespace("db", "c"), uuid4(), ObjectId(), Timestamp(5, 1), pattern)
    low, middle, high = (bson.encode({field: bound}) for bound in (MinKey(), 0, MaxKey()))
    first = ChunkPlacement(low, middle, "s0", (1 << 32) + 0, ())
    second = ChunkPlacement(middle, high, "s1", (1 << 32) + 1, ())
    return RoutingTable.build(collection, [first, second])


def one_owner(field: str, shard: str) -> RoutingTable:
    """All values on one shard, in two chunks."""
    pattern = ShardKeyPattern.from_mapping({field: 1})
    collection = ShardedCollection(Namespace("db", "c"), uuid4(), ObjectId(), Timestamp(5, 1), pattern)
    low, middle, high = (bson.encode({field: bound}) for bound in (MinKey(), 0, MaxKey()))
    chunks = [ChunkPlacement(low, middle, shard, 1 << 32, ()), ChunkPlacement(middle, high, shard, (1 << 32) + 1, ())]
    return RoutingTable.build(collection, chunks)


OWNERSHIP = Ownership(table("a"), table("b"))
documents = st.builds(lambda a, b: bson.encode({"_id": 0, "a": a, "b": b}), st.integers(-9, 9), st.integers(-9, 9))


@given(st.lists(documents))
def test_each_document_goes_from_one_donor_to_one_recipient(found: list[bytes]) -> None:
    parts = [OWNERSHIP.handed_over(found, donor, recipient) for donor in SHARDS for recipient in SHARDS]
    assert sorted(document for part in parts for document in part) == sorted(found)


@given(st.lists(documents))
def test_the_only_donor_hands_over_all_that_a_recipient_will_own(found: list[bytes]) -> None:
    """The former owners are not looked up if no other shard has chunks."""
    ownership = Ownership(one_owner("a", "s1"), table("b"))
    parts = {recipient: ownership.handed_over(found, "s1", recipient) for recipient in SHARDS}
    assert parts == {each: [one for one in found if ownership.recipient_of(one) == each] for each in SHARDS}
    assert ownership.handed_over(found, "s0", "s0") == []


def test_orphans_are_not_handed_over() -> None:
    orphan = bson.encode({"_id": 0, "a": 5, "b": 5})
    assert OWNERSHIP.handed_over([orphan], "s0", "s1") == []
    assert OWNERSHIP.handed_over([orphan], "s1", "s1") == [orphan]


def test_names() -> None:
    uuid = uuid4()
    name = temporary_namespace(Namespace("db", "c"), uuid)
    assert str(name) == f"db.system.resharding.{uuid}"
    assert is_temporary(name)
    assert not is_temporary(Namespace("db", "c"))
    assert str(stash_namespace(uuid, "s0")) == f"config.localReshardingConflictStash.{uuid}.s0"
