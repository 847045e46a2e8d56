"""Closing the buckets of a time-series collection that a donor has given away.

mongod keeps buckets open for further measurements and chooses among them without regard to shard keys. A bucket that
begins just before the end of a range may take measurements that begin a bucket behind it, which is another shard's or
still the donor's. If the range moves and the donor keeps what is behind it, such a measurement would end up in a bucket
that is an orphan by now. MongoDB's donor makes its mongod forget all open buckets; here the buckets in question are
closed by an update, after which mongod opens new ones. They are orphans, so nobody sees the difference.
"""

from datetime import datetime, timedelta
from typing import Any

from shardwright.daemon.sidecar.mongod import LocalMongod
from shardwright.shardd.orphans.range_deletion_task import KeyRange
from shardwright.sharding.sharded_collection import ShardedCollection
from shardwright.sharding.time_series import TimeSeriesFields
from shardwright.wire.rawbson import decode_document


async def close_open_buckets(mongod: LocalMongod, collection: ShardedCollection, moved: KeyRange) -> None:
    """Close the buckets of a range that mongod might add measurements to that do not belong to the range.

    Args:
        mongod: the local mongod.
        collection: the collection; nothing is done if it does not hold buckets.
        moved: the range that another shard owns now.

    Raises:
        CommandError: mongod refuses.
        BackendError: mongod does not answer.
    """
    fields = collection.time_series
    query = None if fields is None else _endangered(fields, collection, moved)
    if query is None:
        return
    closing = {"q": query, "u": {"$set": {"control.closed": True}}, "multi": True, "collation": {"locale": "simple"}}
    namespace = collection.namespace
    update = {"update": namespace.collection, "updates": [closing], "bypassDocumentValidation": True}
    await mongod.command(namespace.db, update)


def _endangered(fields: TimeSeriesFields, collection: ShardedCollection, moved: KeyRange) -> dict[str, Any] | None:
    """The query for the buckets that begin so shortly before the end of the range that they may reach beyond it.

    Only a key with the time separates measurements of one bucket, and only those with the metadata of the range's end.
    """
    end: dict[str, Any] = decode_document(moved.max)
    time = end.get(fields.min_time_field)
    if not isinstance(time, datetime):
        return None  # the range ends between times, or the key has none
    hashed = collection.key_pattern.hashed_field
    query = {
        name: {"$eq": value}
        for name, value in end.items()
        if name != fields.min_time_field and (hashed is None or name.encode() != hashed.name)
    }
    query[fields.min_time_field] = {"$gte": time - timedelta(milliseconds=fields.span_ms), "$lt": time}
    return query
