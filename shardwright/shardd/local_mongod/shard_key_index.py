"""The index that supports a shard key, and reads of ranges through it.

It is found among the existing indexes, or created, by the rules of MongoDB 6.0's ``shardCollection``
(`ensure_shard_key_index`). `ShardKeyIndex` reads a range of shard key values through it, with cursors that return raw
documents.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import bson

from shardwright.daemon.sidecar.mongod import LocalMongod
from shardwright.shardd.local_mongod.local_collections import create_indexes, is_empty, list_indexes
from shardwright.sharding.bson_text import document_text
from shardwright.sharding.chunks import ChunkRange
from shardwright.sharding.namespace import Namespace
from shardwright.sharding.shard_key import ShardKeyPattern
from shardwright.wire import rawbson
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.rawbson import decode_document, encode_document
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


async def ensure_shard_key_index(
    mongod: LocalMongod,
    namespace: Namespace,
    pattern: ShardKeyPattern,
    *,
    unique: bool,
    is_declared_unique: bool,
    has_default_collation: bool,
    may_create: bool,
) -> None:
    """Find or create an index that supports the shard key.

    Args:
        namespace: an existing collection.
        pattern: its future shard key.
        unique: whether an existing index must be unique and have exactly the key.
        is_declared_unique: whether to create the index as unique.
        has_default_collation: whether the collection has a default collation, which the index must not use.
        may_create: whether to create the index if it is missing and the collection is empty.

    Raises:
        CommandError: InvalidOptions, an existing index conflicts, or the index is missing and must not be created.
    """
    indexes = await list_indexes(mongod, namespace)
    if has_supporting_index(namespace, pattern, indexes, unique=unique):
        # mongod checks whether it is multikey, which its specification does not show.
        await mongod.command(
            namespace.db, {"checkShardingIndex": str(namespace), "keyPattern": decode_document(pattern.document)}
        )
        return
    if not may_create:
        raise CommandError(ErrorCode.InvalidOptions, "Must have an index compatible with the proposed shard key")
    if not await is_empty(mongod, namespace):
        raise CommandError(
            ErrorCode.InvalidOptions,
            "Please create an index that starts with the proposed shard key before sharding the collection",
        )
    await create_indexes(
        mongod,
        namespace,
        [index_specification(pattern, unique=is_declared_unique, has_default_collation=has_default_collation)],
    )


def has_supporting_index(
    namespace: Namespace, pattern: ShardKeyPattern, indexes: Sequence[Mapping[str, Any]], *, unique: bool
) -> bool:
    """Whether one of ``indexes`` supports the shard key.

    Raises:
        CommandError: InvalidOptions, a shard could not enforce the uniqueness of an existing index by itself, or a
            shard key index is not unique although it has to be.
    """
    for index in indexes:
        if not pattern.allows_uniqueness_of(index):
            raise CommandError(
                ErrorCode.InvalidOptions,
                f"can't shard collection '{namespace}' with unique index on "
                f"{document_text(encode_document(index['key']))} and proposed shard key {pattern}. "
                "Uniqueness can't be maintained unless shard key is a prefix",
            )
    if not any(pattern.is_supported_by_index(index) for index in indexes):
        return False
    if not unique:
        return True
    exact = [
        index for index in indexes if len(index["key"]) == len(pattern.fields) and pattern.is_prefix_of(index["key"])
    ]
    for index in exact:
        if not index.get("unique") and next(iter(index["key"])) != "_id":
            raise CommandError(
                ErrorCode.InvalidOptions,
                f"can't shard collection {namespace}, {pattern} index not unique, "
                "and unique index explicitly specified",
            )
    return bool(exact)


def index_specification(pattern: ShardKeyPattern, *, unique: bool, has_default_collation: bool) -> dict[str, Any]:
    """Return the specification of an index on exactly the shard key."""
    specification: dict[str, Any] = {"key": decode_document(pattern.document), "name": pattern.index_name}
    if unique:
        specification["unique"] = True
    if has_default_collation:
        specification["collation"] = {"locale": "simple"}
    return specification
