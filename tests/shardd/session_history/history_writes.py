"""Retryable writes sent by hand, and a donor's history of them."""

from collections.abc import Mapping
from typing import Any
from uuid import UUID, uuid4

import bson
from bson.binary import Binary
from bson.int64 import Int64

from shardwright.daemon.sidecar.mongod import LocalMongod
from shardwright.shardd.session_history.donor_history import DonorHistory
from shardwright.shardd.session_history.oplog_history import HistoryReader
from shardwright.shardd.session_history.statement import ExecutedStatement
from shardwright.sharding.chunks import ChunkRange
from shardwright.sharding.logical_sessions import NO_USER
from shardwright.sharding.namespace import Namespace
from shardwright.sharding.shard_key import ShardKeyPattern
from shardwright.wire.frames import next_request_id
from shardwright.wire.message import op_msg
from shardwright.wire.rawbson import encode_document
from shardwright.wire.transport.client import Connection, decode_reply
from shardwright.wire.transport.pool import Pool

GOSSIP = ("$clusterTime", "operationTime", "electionId", "opTime")


class Session:
    """A client's session."""

    def __init__(self) -> None:
        self.id = uuid4()
        self._unique = uuid4()

    def write(self, number: int, command: Mapping[str, Any]) -> dict[str, Any]:
        """A command as a retryable write."""
        return {**command, "lsid": {"id": Binary.from_uuid(self.id)}, "txnNumber": Int64(number)}

    def child(self, number: int) -> dict[str, Any]:
        """The session fields of the transaction that executes a retryable write."""
        parent = {"id": Binary.from_uuid(self.id), "uid": Binary(NO_USER)}
        lsid = {**parent, "txnNumber": Int64(number), "txnUUID": Binary.from_uuid(self._unique)}
        return {"lsid": lsid, "txnNumber": Int64(0), "autocommit": False}


async def reply_to(server: Pool | Connection, db: str, command: Mapping[str, Any]) -> dict[str, Any]:
    """The reply to a command, even to a failed one, without gossiped times."""
    body = bson.encode({**command, "$db": db})
    reply = decode_reply(await server.exchange(op_msg(body, request_id=next_request_id())))
    return {name: value for name, value in reply.items() if name not in GOSSIP}


async def collection_uuid(mongod: LocalMongod, namespace: Namespace) -> UUID:
    """The UUID of a collection, which is created if necessary."""
    listing = {"listCollections": 1, "filter": {"name": namespace.collection}}
    reply = await mongod.command(namespace.db, listing)
    if not reply["cursor"]["firstBatch"]:
        await mongod.command(namespace.db, {"create": namespace.collection})
        reply = await mongod.command(namespace.db, listing)
    (entry,) = reply["cursor"]["firstBatch"]
    return UUID(bytes=bytes(entry["info"]["uuid"]))


async def donor_history(
    mongod: LocalMongod,
    namespace: Namespace,
    low: Mapping[str, Any],
    high: Mapping[str, Any],
    *,
    direction: object = 1,
    **options: int,
) -> DonorHistory:
    """The history of a range of a collection with a shard key of the bounds' fields."""
    pattern = ShardKeyPattern.from_mapping(dict.fromkeys(low, direction))
    chunk_range = ChunkRange.of(pattern, encode_document(low), encode_document(high))
    uuid = await collection_uuid(mongod, namespace)
    return DonorHistory(mongod, HistoryReader(namespace, uuid.bytes, pattern, chunk_range), **options)


async def drained(history: DonorHistory) -> list[bytes]:
    """All statements that a donor hands out."""
    statements: list[bytes] = []
    while batch := await history.next_batch():
        statements += batch
    return statements


def of_session(statements: list[bytes], session: Session) -> list[ExecutedStatement]:
    """The statements of one session, by statement id."""
    all_of_them = [ExecutedStatement.from_bson(raw) for raw in statements]
    own = [each for each in all_of_them if session.id.bytes in each.write.lsid]
    return sorted(own, key=lambda each: each.statement_id)
