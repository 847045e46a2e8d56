"""Batches of a range deletion: documents found through the shard key index, deleted if still in the range."""

from collections.abc import Mapping, Sequence
from typing import Any

from shardwright.daemon.sidecar.mongod import LocalMongod
from shardwright.shardd.local_mongod.range_scan import ShardKeyIndex, all_documents
from shardwright.shardd.orphans.ownership_filter import OwnershipFilter
from shardwright.sharding.chunks import ChunkRange
from shardwright.sharding.namespace import Namespace
from shardwright.sharding.shard_key import ShardKeyPattern
from shardwright.wire import rawbson


async def next_batch(
    mongod: LocalMongod, namespace: Namespace, pattern: ShardKeyPattern, wanted: ChunkRange, size: int
) -> list[bytes]:
    """Return up to ``size`` documents of a range, as raw ``{_id}``; none if it is empty.

    Raises:
        CommandError: IndexNotFound, no index supports the shard key.
        BackendError: mongod does not answer.
    """
    index = await ShardKeyIndex.find(mongod, namespace, pattern)
    for scan in index.scans(pattern, wanted):
        some = {"projection": {"_id": 1}, "batchSize": size, "limit": size, "singleBatch": True}
        found = await all_documents(mongod, namespace, {**scan, **some})
        if found:
            return found
    return []


def delete_statement(
    found: Sequence[bytes], pattern: ShardKeyPattern, wanted: ChunkRange, default_collation: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Return the statement that deletes documents, except those that have left the range since they were found.

    It uses the collection's collation, so that it can use the ``_id`` index.

    Args:
        found: the documents, as `next_batch` returns them.
    """
    outside = OwnershipFilter(pattern, (wanted,), default_collation).query(default_collation)
    query = {"_id": rawbson.raw_document(one_of(found)), "$nor": [rawbson.raw_document(outside)]}
    return {"q": query, "limit": 0}


def one_of(found: Sequence[bytes]) -> bytes:
    """Return ``{$in: [<_id>, …]}`` with the ids of the documents."""
    ids = []
    for position, document in enumerate(found):
        span = rawbson.find(document, b"_id")
        assert span is not None
        ids.append(rawbson.element(b"%d" % position, span[0], document[span[2] : span[3]]))
    return rawbson.wrap_value(rawbson.ARRAY, rawbson.from_elements(b"".join(ids)), b"$in")
