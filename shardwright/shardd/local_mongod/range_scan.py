"""Reads of a range of shard key values through an index, and cursors that return raw documents."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import bson

from shardwright.daemon.sidecar.mongod import LocalMongod
from shardwright.shardd.local_mongod.local_collections import list_indexes
from shardwright.sharding.chunks import ChunkRange
from shardwright.sharding.namespace import Namespace
from shardwright.sharding.shard_key import ShardKeyPattern
from shardwright.wire import rawbson
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.transport.cursor import REPLY_SECONDS_MAX, RawCursor

OWN_CURSOR_COMMENT: Final = {"shardwright": "migration"}
"""The ``comment`` of migrations' cursors. Range deletions ignore such a cursor if a killed daemon left it behind."""


@dataclass(frozen=True, slots=True)
class ShardKeyIndex:
    """An index that supports ranges of a shard key.

    Attributes:
        name: its name, for hints, because several indexes may have the same key.
        key: its key, which begins with the fields of the shard key.
    """

    name: str
    key: Mapping[str, Any]

    @classmethod
    async def find(cls, mongod: LocalMongod, namespace: Namespace, pattern: ShardKeyPattern) -> "ShardKeyIndex":
        """Return the first index of a collection that supports the shard key, or raise IndexNotFound."""
        for index in await list_indexes(mongod, namespace):
            if pattern.is_supported_by_index(index):
                return cls(index["name"], index["key"])
        raise CommandError(ErrorCode.IndexNotFound, f"no index of {namespace} supports the shard key {pattern}")

    def scans(
        self, pattern: ShardKeyPattern, wanted: ChunkRange, from_key: bytes | None = None
    ) -> list[dict[str, Any]]:
        """Return the arguments of one or two ``find`` commands that read a range in the index's order.

        A key of only MaxKey belongs to the last chunk, although it is not below that chunk's bound. Even a scan without
        an upper bound ends before it, so it needs a query of its own.

        Args:
            from_key: a shard key document, not below the range, at which to start; by default the range's beginning.
        """
        # The index orders strings as the shard key does; the collection's default collation may not.
        common = {"hint": self.name, "collation": {"locale": "simple"}}
        scans: list[dict[str, Any]] = []
        if from_key is None or pattern.key_bytes(from_key) < wanted.max_key:  # else mongod refuses the bounds
            scans.append({"min": self.bound(from_key or wanted.min), "max": self.bound(wanted.max), **common})
        if wanted.max_key == pattern.global_max_bytes() and pattern.hashed_field is None:
            scans.append({"filter": {each.name.decode(): {"$eq": bson.MaxKey()} for each in pattern.fields}, **common})
        return scans

    def bound(self, bound: bytes) -> Mapping[str, Any]:
        """Extend a bound of the shard key to all fields of the index, before all entries with that shard key."""
        given = len(list(rawbson.spans(bound)))
        rest = {name: _first(direction) for name, direction in list(self.key.items())[given:]}
        return rawbson.raw_document(rawbson.append(bound, rawbson.encode_elements(rest)) if rest else bound)


def _first(direction: object) -> object:
    """Return the value that sorts first in an index field with this direction."""
    is_descending = isinstance(direction, int | float) and direction < 0
    return bson.MaxKey() if is_descending else bson.MinKey()


def find_cursor(
    mongod: LocalMongod,
    namespace: Namespace,
    arguments: Mapping[str, Any],
    *,
    options: Mapping[str, Any] | None = None,
    reply_seconds_max: float = REPLY_SECONDS_MAX,
) -> RawCursor:
    """Return the cursor of a ``find`` with these arguments; for `options` and `reply_seconds_max` see `Cursor`."""
    find = {"find": namespace.collection, **arguments}
    return RawCursor(mongod.pool.exchange, namespace.db, find, options=options, reply_seconds_max=reply_seconds_max)


def migration_cursor(
    mongod: LocalMongod,
    namespace: Namespace,
    arguments: Mapping[str, Any],
    *,
    options: Mapping[str, Any] | None = None,
) -> RawCursor:
    """Return a `find_cursor` marked as a migration's, so that range deletions ignore one left by a killed daemon."""
    return find_cursor(mongod, namespace, {"comment": OWN_CURSOR_COMMENT, **arguments}, options=options)


async def all_documents(mongod: LocalMongod, namespace: Namespace, arguments: Mapping[str, Any]) -> list[bytes]:
    """Return all documents of a ``find``."""
    return await find_cursor(mongod, namespace, arguments).all_documents()


async def is_range_empty(
    mongod: LocalMongod, namespace: Namespace, pattern: ShardKeyPattern, wanted: ChunkRange
) -> bool:
    """Whether a range has no documents, according to an index that supports the shard key.

    Raises IndexNotFound if there is no such index.
    """
    index = await ShardKeyIndex.find(mongod, namespace, pattern)
    for scan in index.scans(pattern, wanted):
        find = {"find": namespace.collection, **scan, "limit": 1, "singleBatch": True, "projection": {"_id": 1}}
        reply = await mongod.command(namespace.db, find)
        if reply["cursor"]["firstBatch"]:
            return False
    return True
