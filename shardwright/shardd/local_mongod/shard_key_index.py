"""The index that supports a shard key: found among the existing ones, or created.

The rules come from MongoDB 6.0's ``shardCollection``.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from shardwright.daemon.sidecar.mongod import LocalMongod
from shardwright.shardd.local_mongod.local_collections import create_indexes, is_empty, list_indexes
from shardwright.sharding.bson_text import document_text
from shardwright.sharding.namespace import Namespace
from shardwright.sharding.shard_key import ShardKeyPattern
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.rawbson import decode_document, encode_document


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
