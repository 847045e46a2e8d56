"""Catalog documents: documents written by MongoDB 6.0.5 are read, and written back byte for byte."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Protocol

import bson
import pytest
from bson.binary import Binary
from bson.max_key import MaxKey
from bson.min_key import MinKey
from bson.objectid import ObjectId
from bson.timestamp import Timestamp

from shardwright.sharding.catalog.cache import (
    CachedCollection,
    CachedDatabase,
    cache_chunks_namespace,
    cached_placement_document,
)
from shardwright.sharding.catalog.documents import ChangeLogEntry, TagEntry, VersionEntry
from shardwright.sharding.catalog.settings import AutoSplitSettings, BalancerSettings, ChunkSizeSettings
from shardwright.sharding.chunks import read_placements
from shardwright.sharding.namespace import Namespace
from shardwright.sharding.shard_key import ShardKeyPattern
from shardwright.wire.errors import CommandError
from tests.sharding.chunk_worlds import COLLECTION, chunk

UUID_BINARY = Binary(bytes(range(16)), 4)
DATABASE_VERSION = {"uuid": UUID_BINARY, "timestamp": Timestamp(1795177460, 19), "lastMod": 1}


class Writable(Protocol):
    """The methods of every parsed catalog document."""

    def to_document(self) -> dict[str, Any]: ...


class Kind(Protocol):
    """A class of catalog documents."""

    def from_document(self, document: Mapping[str, Any], /) -> Writable: ...


SEEN: list[tuple[Kind, dict[str, Any]]] = [
    (
        TagEntry,
        {
            "_id": ObjectId(),
            "ns": "d.c",
            "min": {"c": "a", "x": MinKey()},
            "max": {"c": "f", "x": MinKey()},
            "tag": "A",
        },
    ),
    (TagEntry, {"_id": {"ns": "d.c", "min": {"x": 1}}, "ns": "d.c", "min": {"x": 1}, "max": {"x": 2}, "tag": "A"}),
    (VersionEntry, {"_id": 1, "minCompatibleVersion": 5, "currentVersion": 6, "clusterId": ObjectId()}),
    (
        ChangeLogEntry,
        {
            "_id": "vm:38920-2026-11-20T12:24:20.303+00:00-6b003bf4127a241e67d24892",
            "server": "vm:38920",
            "shard": "config",
            "clientAddr": "127.0.0.1:42388",
            "time": datetime(2026, 11, 20, 12, 24, 20, 303000),
            "what": "addShard",
            "ns": "",
            "details": {"name": "sh1", "host": "sh1/127.0.0.1:38921"},
        },
    ),
    (BalancerSettings, {"_id": "balancer", "mode": "off", "stopped": True}),
    (
        BalancerSettings,
        {
            "_id": "balancer",
            "mode": "full",
            "stopped": False,
            "activeWindow": {"start": "01:00", "stop": "05:00"},
            "_secondaryThrottle": {"w": 2},
            "_waitForDelete": True,
            "attemptToBalanceJumboChunks": True,
        },
    ),
    (ChunkSizeSettings, {"_id": "chunksize", "value": 64}),
    (AutoSplitSettings, {"_id": "autosplit", "enabled": False}),
    (CachedDatabase, {"_id": "d", "partitioned": False, "primary": "sh1", "version": DATABASE_VERSION}),
    (
        CachedDatabase,
        {
            "_id": "d",
            "partitioned": False,
            "primary": "sh1",
            "version": DATABASE_VERSION,
            "enterCriticalSectionCounter": 1,
        },
    ),
    (
        CachedCollection,
        {
            "_id": "d.h0",
            "epoch": ObjectId(),
            "timestamp": Timestamp(1795177496, 9),
            "uuid": UUID_BINARY,
            "key": {"x": "hashed"},
            "unique": False,
            "refreshing": False,
            "allowAutoSplit": True,
            "lastRefreshedCollectionVersion": Timestamp(1, 5),
        },
    ),
]


@pytest.mark.parametrize(("kind", "document"), SEEN)
def test_what_was_seen_is_written_the_same(kind: Kind, document: dict[str, Any]) -> None:
    read = bson.decode(bson.encode(document))
    assert bson.encode(kind.from_document(read).to_document()) == bson.encode(document)


@pytest.mark.parametrize(("kind", "document"), SEEN)
def test_a_field_of_a_wrong_type_is_refused(kind: Kind, document: dict[str, Any]) -> None:
    names = [name for name in document if name not in ("_id", "partitioned", "allowAutoSplit", "_secondaryThrottle")]
    name = "currentVersion" if kind is VersionEntry else names[0]
    with pytest.raises(CommandError) as caught:
        kind.from_document(document | {name: None})
    assert caught.value.code == 14


def test_settings_that_nobody_changed() -> None:
    assert BalancerSettings.from_document(None).mode == "full"
    assert ChunkSizeSettings.from_document(None).value_bytes == 128 * 1024 * 1024
    assert AutoSplitSettings.from_document(None).enabled


def test_a_balancer_that_was_stopped_in_the_old_way() -> None:
    assert BalancerSettings.from_document({"_id": "balancer", "stopped": True}).mode == "off"


@pytest.mark.parametrize("value", [0, 1025, -1])
def test_chunk_sizes_out_of_bounds(value: int) -> None:
    with pytest.raises(CommandError) as caught:
        ChunkSizeSettings.from_document({"_id": "chunksize", "value": value})
    assert caught.value.code == 2


def test_an_unknown_balancer_mode() -> None:
    with pytest.raises(CommandError) as caught:
        BalancerSettings.from_document({"_id": "balancer", "mode": "slow"})
    assert caught.value.code == 2


def test_a_catalog_of_another_schema() -> None:
    document = VersionEntry(ObjectId()).to_document() | {"currentVersion": 7}
    with pytest.raises(CommandError):
        VersionEntry.from_document(document)


def test_changelog_id() -> None:
    made = ChangeLogEntry.make_id(
        "vm:38920", datetime(2026, 11, 20, 12, 24, 20, 303000), ObjectId("6b003bf4127a241e67d24892")
    )
    assert made == SEEN[3][1]["_id"]


def test_bounds_of_a_tag_become_full_keys() -> None:
    tag = TagEntry(ObjectId(), Namespace("d", "c"), {"a": 1}, {"a": MaxKey()}, "A")
    zone = tag.zone_range(ShardKeyPattern.from_mapping({"a": 1, "b": 1}))
    assert bson.decode(zone.min) == {"a": 1, "b": MinKey()}
    assert zone.zone == "A"


def test_cached_chunks() -> None:
    each = chunk(0, 10, "s1", 1, 2)
    document = cached_placement_document(each.placement)
    assert list(document) == ["_id", "max", "shard", "lastmod", "history"]
    assert list(read_placements([bson.encode(document)], is_cached=True)) == [each.placement]
    assert str(cache_chunks_namespace(Namespace("d", "c"))) == "config.cache.chunks.d.c"


def test_cached_collection_gives_back_what_routing_needs() -> None:
    cached = CachedCollection.from_collection(COLLECTION, refreshing=True)
    assert cached.refreshing
    assert CachedCollection.from_document(cached.to_document()).for_routing() == COLLECTION
