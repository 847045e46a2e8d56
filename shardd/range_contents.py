"""Whether a range of shard key values holds documents on the own mongod."""

from collections.abc import Mapping
from typing import Any

import bson

from daemon.sidecar.mongod import LocalMongod
from shardd.local_collections import list_indexes
from sharding.chunks import ChunkRange
from sharding.namespace import Namespace
from sharding.shard_key import ShardKeyPattern
from wire import rawbson
from wire.error_codes import ErrorCode
from wire.errors import CommandError


async def is_range_empty(
    mongod: LocalMongod, namespace: Namespace, pattern: ShardKeyPattern, wanted: ChunkRange
) -> bool:
    """Whether no document has a shard key in a range, looked up in an index that begins with the shard key.

    Raises:
        CommandError: IndexNotFound, there is no such index.
    """
    for index in await list_indexes(mongod, namespace):
        if pattern.is_supported_by_index(index):
            break
    else:
        raise CommandError(ErrorCode.IndexNotFound, f"no index of {namespace} supports the shard key {pattern}")
    bounds = {"min": _index_bound(index["key"], wanted.min), "max": _index_bound(index["key"], wanted.max)}
    if await _finds_any(mongod, namespace, {"hint": index["key"], **bounds}):
        return False
    # A key of nothing but MaxKey belongs to the last chunk, though it is not below its bound.
    if wanted.max_key != pattern.global_max_bytes():
        return True
    greatest = {each.name.decode(): {"$eq": bson.MaxKey()} for each in pattern.fields}
    return not await _finds_any(mongod, namespace, {"filter": greatest})


async def _finds_any(mongod: LocalMongod, namespace: Namespace, search: Mapping[str, Any]) -> bool:
    # The index orders strings as the shard key does, which the collection's own collation may not.
    options = {"limit": 1, "singleBatch": True, "projection": {"_id": 1}, "collation": {"locale": "simple"}}
    find = {"find": namespace.collection, **search, **options}
    reply = await mongod.command(namespace.db, find)
    return bool(reply["cursor"]["firstBatch"])


def _index_bound(index_key: dict[str, Any], bound: bytes) -> dict[str, Any]:
    """A bound on the first fields of an index, made one on all of them."""
    values: dict[str, Any] = bson.decode(bound, codec_options=rawbson.VALUE_CODEC)
    return {name: values.get(name, _lowest(direction)) for name, direction in index_key.items()}


def _lowest(direction: object) -> object:
    """What comes first in an index field of this direction."""
    is_descending = isinstance(direction, int | float) and direction < 0
    return bson.MaxKey() if is_descending else bson.MinKey()
