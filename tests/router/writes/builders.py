"""Routing tables and write commands for the tests of this folder."""

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

import bson
from bson.max_key import MaxKey
from bson.min_key import MinKey
from bson.objectid import ObjectId
from bson.timestamp import Timestamp

from shardwright.router.writes.batch import WriteBatch, WriteKind
from shardwright.sharding.chunks import ChunkPlacement
from shardwright.sharding.namespace import Namespace
from shardwright.sharding.routing_table import RoutingTable, ShardedCollection
from shardwright.sharding.shard_key import ShardKeyPattern
from shardwright.wire.message import OpMsg, encode_sequence, op_msg
from shardwright.wire.rawbson import encode_document
from shardwright.wire.request import Request

NAMESPACE = "shop.orders"


def table(
    key: Mapping[str, Any],
    splits: Sequence[Mapping[str, Any]],
    shards: Sequence[str],
    collation: Mapping[str, Any] | None = None,
) -> RoutingTable:
    """A table with chunks between these split points, the n-th chunk on the n-th shard.

    Fields that a split point does not name are MinKey.
    """
    pattern = ShardKeyPattern.from_mapping(key)
    bounds = [
        pattern.global_min(),
        *(encode_document({name: split.get(name, MinKey()) for name in key}) for split in splits),
        encode_document({name: MaxKey() for name in key}),
    ]
    collection = ShardedCollection(
        Namespace.parse(NAMESPACE),
        UUID(int=7),
        ObjectId("64b000000000000000000001"),
        Timestamp(1_700_000_000, 1),
        pattern,
        default_collation=collation,
    )
    return RoutingTable.build(
        collection,
        [
            ChunkPlacement(min=low, max=high, shard=shard, version=number << 32, history=())
            for number, (low, high, shard) in enumerate(zip(bounds, bounds[1:], shards, strict=False), 1)
        ],
    )


def request(
    kind: WriteKind, statements: Sequence[Mapping[str, Any]], in_body: bool = False, /, **arguments: object
) -> Request:
    """A write command on `NAMESPACE`, with its statements in a sequence section or in the body."""
    db, _, collection = NAMESPACE.partition(".")
    command: dict[str, Any] = {kind.command: collection}
    if in_body:
        command[kind.field.decode()] = list(statements)
    command |= {**arguments, "$db": db}
    sections = b"" if in_body else encode_sequence(kind.field, map(bson.encode, statements))
    return Request(OpMsg(op_msg(bson.encode(command), request_id=42, sections=sections)))


def batch(
    kind: WriteKind, statements: Sequence[Mapping[str, Any]], in_body: bool = False, /, **arguments: object
) -> WriteBatch:
    """As `request`, parsed."""
    return WriteBatch(kind, request(kind, statements, in_body, **arguments))
