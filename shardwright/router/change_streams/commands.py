"""Commands of a change stream to the cluster, by which it completes its events."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

import bson
import trio
from bson.binary import Binary
from bson.timestamp import Timestamp

from shardwright.router.change_streams.specification import applied_to
from shardwright.router.change_streams.tokens import ResumeToken
from shardwright.router.context.router_context import RouterContext
from shardwright.router.exec.remote import RemoteCursor
from shardwright.router.operations.cursor_opening import open_on_shards
from shardwright.router.operations.operation import Operation
from shardwright.router.operations.retry import with_routing
from shardwright.router.operations.scatter import forwarded
from shardwright.router.placement.routing_info import CollectionRouting, shards_for_read
from shardwright.router.replies.cursor_reply import CursorReply
from shardwright.router.replies.shard_reply import ShardReply
from shardwright.sharding.clock import signed_cluster_time
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.frames import next_request_id
from shardwright.wire.limits import check_size
from shardwright.wire.message import OpMsg, op_msg
from shardwright.wire.rawbson import ARRAY, append, element, raw_document
from shardwright.wire.request import Request
from shardwright.wire.transport.client_connection import ClientConnection

_EVALUATED_BYTES_MAX: Final = 4 * 1024 * 1024
"""Maximum size of the events in one command; a single event may be larger."""

_COLLECTION_IS_GONE: Final = (ErrorCode.NamespaceNotFound, ErrorCode.CollectionUUIDMismatch)

_EXPIRATIONS: Final = ("md.indexes.spec.expireAfterSeconds", "md.options.expireAfterSeconds")
"""Fields of ``$listCatalog`` that show that documents of a collection expire."""

_LOOKUPS_AT_ONCE_MAX: Final = 8

_SIMPLE: Final = {"locale": "simple"}


K = TypeVar("K")
T = TypeVar("T")


async def look_up_each(keys: Sequence[K], look_up: Callable[[K], Awaitable[T]]) -> list[T]:
    """Run a look-up for each key, several at a time; return the results in the order of the keys.

    Raises:
        CommandError: the first failure, once all look-ups have ended.
    """
    found: dict[int, T] = {}
    failures: list[CommandError] = []
    limit = trio.CapacityLimiter(_LOOKUPS_AT_ONCE_MAX)

    async def add(number: int, key: K) -> None:
        try:
            async with limit:
                found[number] = await look_up(key)
        except CommandError as error:
            failures.append(error)

    async with trio.open_nursery() as nursery:
        for number, key in enumerate(keys):
            nursery.start_soon(add, number, key)
    if failures:
        raise failures[0]
    return [found[number] for number in range(len(keys))]


class Commands:
    """Runs commands for one stream.

    Args:
        variables: the raw elements ``let`` and ``collation`` of the client's command, which its stages depend on.
        passed_on: its raw elements ``comment`` and ``$readPreference``, which look-ups carry as in MongoDB.
    """

    def __init__(
        self, context: RouterContext, client: ClientConnection, variables: bytes = b"", passed_on: bytes = b""
    ) -> None:
        self._context = context
        self._client = client
        self._variables = variables
        self._passed_on = passed_on

    async def find(self, namespace: str, key: bytes, token: ResumeToken) -> dict[str, bytes]:
        """Return the documents with a key, by shard, as of the event's time or later and majority-committed.

        The result is empty if the documents or their collection are gone. A shard has at most one such document,
        because the key includes ``_id``.

        Args:
            key: the raw ``documentKey``.
            token: of the event. Its UUID excludes another collection that has the same name now.
        """
        db, _, collection = namespace.partition(".")
        command = {
            "find": collection,
            "filter": raw_document(key),
            "collation": _SIMPLE,
            "singleBatch": True,
            "batchSize": 1,
            "readConcern": _read_concern(token),
            "$clusterTime": signed_cluster_time(token.time),
            "$db": db,
        }
        if token.collection_uuid is not None:
            command["collectionUUID"] = Binary.from_uuid(token.collection_uuid)
        operation = Operation(self._context, self._client, _request(append(bson.encode(command), self._passed_on)))

        async def attempt(routing: CollectionRouting) -> list[ShardReply]:
            shards = shards_for_read(routing, key, None, None)
            frames = {shard: forwarded(operation, routing.versions_for(shard)) for shard in shards}
            return await open_on_shards(operation, frames, preference=operation.read_preference)

        try:
            replies = await with_routing(operation, namespace, attempt)
        except CommandError as error:
            if error.code not in _COLLECTION_IS_GONE:
                raise
            return {}
        return {reply.shard_id: document for reply in replies for document in CursorReply.of(reply).documents()}

    async def was_on_shard(
        self, shard_id: str, namespace: str, key: bytes, token: ResumeToken, time: Timestamp
    ) -> bool:
        """Whether a shard had a document that was not an orphan.

        Args:
            key: the raw ``documentKey``.
            token: of an event of the collection.

        Raises:
            CommandError: SnapshotTooOld and StaleChunkHistory, the history no longer reaches back to that time.
        """
        db, _, collection = namespace.partition(".")
        command = {
            "find": collection,
            "filter": raw_document(key),
            "projection": {"_id": 1},
            "collation": _SIMPLE,
            "singleBatch": True,
            "limit": 1,
            "readConcern": _snapshot(time),
            "$clusterTime": signed_cluster_time(token.time),
            "$db": db,
        }
        operation = Operation(self._context, self._client, _request(bson.encode(command)))

        async def attempt(routing: CollectionRouting) -> list[ShardReply]:
            return await open_on_shards(operation, {shard_id: forwarded(operation, routing.versions_for(shard_id))})

        replies = await with_routing(operation, namespace, attempt)
        return any(CursorReply.of(reply).documents() for reply in replies)

    async def may_expire(self, shard_id: str, namespace: str) -> bool:
        """Whether a shard's TTL monitor deletes documents of a collection."""
        db, _, collection = namespace.partition(".")
        expiring = [{path: {"$exists": True}} for path in _EXPIRATIONS]
        pipeline = [{"$listCatalog": {}}, {"$match": {"$or": expiring}}, {"$project": {"_id": 0, "name": 1}}]
        command = {"aggregate": collection, "pipeline": pipeline, "cursor": {}, "$db": db}
        return bool(await self._all(await self._send(shard_id, bson.encode(command))))

    async def find_on_shard(
        self,
        shard_id: str,
        namespace: str,
        query: Mapping[str, Any] | bytes,
        projection: Mapping[str, Any],
        token: ResumeToken,
        *,
        at_time: Timestamp | None = None,
    ) -> list[bytes]:
        """Return documents of a shard, orphans included, as of the event's time or later and majority-committed.

        Args:
            at_time: a time to read at instead of the event's.
        """
        db, _, collection = namespace.partition(".")
        command = {
            "find": collection,
            "filter": raw_document(query) if isinstance(query, bytes) else query,
            "projection": projection,
            "collation": _SIMPLE,
            "readConcern": _read_concern(token) if at_time is None else _snapshot(at_time),
            "$clusterTime": signed_cluster_time(token.time),
            "$db": db,
        }
        return await self._all(await self._send(shard_id, bson.encode(command)))

    async def evaluate(self, documents: Sequence[bytes], stages: Sequence[bytes]) -> list[bytes]:
        """Evaluate stages on documents by the mongod of any shard.

        Raises:
            CommandError: BSONObjectTooLarge, a document does not fit into a command; or an expression failed.
        """
        results: list[bytes] = []
        start = 0
        while start < len(documents):
            end, size = start + 1, len(documents[start])
            while end < len(documents) and size + len(documents[end]) <= _EVALUATED_BYTES_MAX:
                size += len(documents[end])
                end += 1
            results += await self._evaluate(documents[start:end], stages)
            start = end
        return results

    async def _evaluate(self, documents: Sequence[bytes], stages: Sequence[bytes]) -> list[bytes]:
        shard_id = await self._context.shards.any_id_as_told()
        body = bson.encode({"aggregate": 1, "cursor": {"batchSize": len(documents)}, "$db": "admin"})
        body = append(body, self._variables + element(b"pipeline", ARRAY, applied_to(documents, stages)))
        check_size(len(body))
        return await self._all(await self._send(shard_id, body))

    async def _all(self, reply: ShardReply) -> list[bytes]:
        """Drain a cursor that a shard has opened; return its results."""
        cursor = CursorReply.of(reply)
        results, remote = cursor.documents(), RemoteCursor.opened(self._context.sender, reply, cursor)
        while not remote.is_exhausted:
            cursor = remote.received(await remote.exchange(remote.get_more_frame(None, b"")))
            results += cursor.documents()
        return results

    async def _send(self, shard_id: str, body: bytes) -> ShardReply:
        reply = await self._context.sender.send(shard_id, op_msg(body, request_id=next_request_id()), may_repeat=True)
        reply.raise_for_error()
        return reply


def _read_concern(token: ResumeToken) -> dict[str, Any]:
    return {"level": "majority", "afterClusterTime": token.time}


def _snapshot(time: Timestamp) -> dict[str, Any]:
    return {"level": "snapshot", "atClusterTime": time}


def _request(body: bytes) -> Request:
    return Request(OpMsg(op_msg(body, request_id=next_request_id())))
