"""Pre-images that are read to complete the keys of events, and the shards that are read."""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import bson
import trio
from bson.timestamp import Timestamp

from shardwright.router.change_streams.changelog import UnshardedTimes
from shardwright.router.change_streams.event_documents import KeyCompletion, PreImages
from shardwright.router.change_streams.merger import Event
from shardwright.router.change_streams.tokens import ResumeToken
from shardwright.sharding.catalog.reads import CatalogReads
from shardwright.sharding.namespace import Namespace
from shardwright.sharding.shard_key import ShardKeyPattern
from tests.router.change_streams.tokens import token

Pairs = dict[str, Any]


class FakeRouting:
    """Collections by name, with their UUIDs and shard keys.

    Attributes:
        changed_at: the time of all of them in the catalog.
    """

    changed_at = Timestamp(0, 1)

    def __init__(self, **shard_keys: tuple[UUID | None, Pairs]) -> None:
        self._collections = {f"d.{name}": given for name, given in shard_keys.items()}

    async def find(self, namespace: str) -> SimpleNamespace | None:
        """As `RoutingCache`."""
        if namespace not in self._collections:
            return SimpleNamespace(table=None)
        uuid, key = self._collections[namespace]
        collection = SimpleNamespace(
            namespace=Namespace.parse(namespace),
            uuid=uuid,
            key_pattern=ShardKeyPattern.from_mapping(key),
            timestamp=self.changed_at,
        )
        return SimpleNamespace(table=SimpleNamespace(collection=collection))


class FakeCommands:
    """Shards that have pre-images by their ids.

    Attributes:
        reads: the shard, the ids and the projection of each read.
    """

    def __init__(self, **images: dict[int, Pairs]) -> None:
        self._images = images
        self.reads: list[tuple[str, list[int], set[str]]] = []

    async def find_on_shard(
        self, shard_id: str, namespace: str, query: Pairs, projection: Mapping[str, Any], newest: ResumeToken
    ) -> list[bytes]:
        """As `Commands`."""
        assert namespace == "config.system.preimages"
        ids = [bson.decode(each.raw)["n"] for each in query["_id"]["$in"]]
        assert newest == token(max(ids))
        self.reads.append((shard_id, ids, set(projection)))
        kept = self._images.get(shard_id, {})
        return [bson.encode({"_id": {"n": each}, "preImage": kept[each]}) for each in ids if each in kept]


UUID_OF_TOKENS = token(1).collection_uuid


def event(time: int, shard: str = "a", collection: str = "c", **fields: object) -> Event:
    document = {"ns": {"db": "d", "coll": collection}, "documentKey": {"_id": time}, "preImageId": {"n": time}}
    return Event(shard, token(time), bson.encode({**document, **fields}))


class FakeCatalog:
    """A changelog.

    Attributes:
        marks: the times before which the collection was not sharded, one for each attempt to shard it.
        reads: how many there were.
    """

    def __init__(self, *marks: int) -> None:
        self.marks = marks
        self.reads = 0
        self.clock = SimpleNamespace(time=SimpleNamespace(cluster_time=1))

    async def read(self, reads: CatalogReads[list[bytes]], *, as_of: int) -> list[bytes]:
        """As `CatalogClient`."""
        self.reads += 1
        query = next(reads).command
        assert (query["filter"]["what"], query["filter"]["ns"], as_of) == ("shardCollection.start", "d.c", 1)
        assert query["sort"] == {"details.markedAfter": -1}
        return [bson.encode({"details": {"markedAfter": Timestamp(1, mark)}}) for mark in reversed(self.marks)]


def keys(
    commands: FakeCommands,
    *events: Event,
    routing: FakeRouting | None = None,
    catalog: FakeCatalog | None = None,
    **shard_keys: tuple[UUID | None, Pairs],
) -> list[Pairs]:
    routing = routing or FakeRouting(**shard_keys)
    unsharded = UnshardedTimes(cast("Any", catalog or FakeCatalog()), cast("Any", routing))
    completion = KeyCompletion(cast("Any", routing), PreImages(cast("Any", commands)), unsharded)
    completed = trio.run(completion.completed, events, [each.document for each in events])
    return [bson.decode(document)["documentKey"] for document in completed]


def test_each_shard_is_asked_once_for_the_fields_of_the_key() -> None:
    commands = FakeCommands(a={1: {"x": {"y": 7}}, 3: {"x": {}}}, b={2: {"x": {"y": 8}}})
    events = event(1), event(2, "b"), event(3), event(4, "b")
    found = keys(commands, *events, c=(UUID_OF_TOKENS, {"x.y": 1, "x.z": "hashed"}))
    assert found == [{"x.y": 7, "_id": 1}, {"x.y": 8, "_id": 2}, {"_id": 3}, {"_id": 4}]
    assert commands.reads == [("a", [1, 3], {"preImage.x"}), ("b", [2, 4], {"preImage.x"})]


def test_nothing_is_read_that_is_known_or_of_no_use() -> None:
    commands = FakeCommands()
    events = (
        event(1, fullDocument={"_id": 1, "x": 7}),
        event(2, documentKey={"x": 8, "_id": 2}),
        event(3, collection="plain"),
        event(4, collection="former"),
        event(5, collection="by_id"),
        event(6, preImageId=None),
    )
    former = UUID(int=1), {"x": 1}
    found = keys(commands, *events, c=(UUID_OF_TOKENS, {"x": 1}), former=former, by_id=(UUID_OF_TOKENS, {"_id": 1}))
    assert found == [{"x": 7, "_id": 1}, {"x": 8, "_id": 2}, *({"_id": number} for number in (3, 4, 5, 6))]
    assert commands.reads == []


def test_events_from_before_the_collection_was_sharded_keep_their_keys() -> None:
    """Sharded after 2, refined at 4, and sharded again in vain after 5."""
    routing, catalog = FakeRouting(c=(UUID_OF_TOKENS, {"x": 1})), FakeCatalog(1, 2, 5)
    routing.changed_at = Timestamp(1, 4)
    events = [event(time, fullDocument={"_id": time, "x": 7}) for time in range(1, 6)]
    found = keys(FakeCommands(), *events, routing=routing, catalog=catalog)
    assert found == [{"_id": 1}, {"_id": 2}, *({"x": 7, "_id": time} for time in (3, 4, 5))]
    assert catalog.reads == 1


def test_without_an_entry_in_the_changelog_the_time_of_the_catalog_counts() -> None:
    routing = FakeRouting(c=(UUID_OF_TOKENS, {"x": 1}))
    routing.changed_at = Timestamp(1, 2)
    events = [event(time, fullDocument={"_id": time, "x": 7}) for time in (2, 3)]
    assert keys(FakeCommands(), *events, routing=routing) == [{"_id": 2}, {"x": 7, "_id": 3}]


def test_nothing_is_read_for_events_from_after_the_last_change_of_shape() -> None:
    catalog = FakeCatalog(3)
    keys(FakeCommands(), event(2, fullDocument={"_id": 2, "x": 7}), catalog=catalog, c=(UUID_OF_TOKENS, {"x": 1}))
    assert catalog.reads == 0
