"""Operations and indexes of sharded collections that a mongod cannot handle correctly without sharding metadata.

Each function is called after an operation has been admitted. It returns the reply frame, or None if the request is to
be forwarded like any other.

mongod counts measurements only where a statement addresses them, and such a statement accepts no ownership filter (see
`orphans.filtered_commands`). So the measurements of each statement are counted just before it. Measurements inserted in
between are changed or removed with their bucket, but not counted. If an update changes only some of the matching
buckets, ``nModified`` is the number of these buckets.

While a database is copied to another shard, collections that an insert or an ``$out`` creates are copied too. Explicit
changes are refused, as in MongoDB.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

import bson

from shardwright.daemon.sidecar.mongod import LocalMongod
from shardwright.shardd.context.shard_context import ShardContext
from shardwright.shardd.exchange.term_exchange import TermExchange
from shardwright.shardd.metadata.namespace_state import NamespaceState
from shardwright.shardd.operations.key_changes import is_collated, may_change_shard_key
from shardwright.shardd.operations.key_changing_request import KeyChangingRequest, UpdatePreviews
from shardwright.shardd.operations.key_changing_updates import KeyChangingUpdates, key_changing_find_and_modify
from shardwright.sharding.bson_text import document_text
from shardwright.sharding.namespace import Namespace
from shardwright.sharding.routing_table import RoutingTable
from shardwright.sharding.shard_key import ShardKeyPattern
from shardwright.sharding.time_series import IS_TIME_SERIES_NAMESPACE, TimeSeriesFields
from shardwright.sharding.versions import VERSION_FIELDS
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.frames import next_request_id
from shardwright.wire.message import MORE_TO_COME, OpMsg, op_msg, reply_document
from shardwright.wire.rawbson import (
    ARRAY,
    EMPTY_DOCUMENT,
    OBJECT,
    append,
    array_of_documents,
    decode_document,
    element,
    encode_document,
    encode_elements,
    find,
    index,
    raw_document,
    without,
)
from shardwright.wire.request import Request
from shardwright.wire.transport.reactor import in_own_task, may_run_in_reactor


@dataclass(frozen=True, slots=True)
class ShardedOperation:
    """An operation that has been admitted to a sharded collection."""

    mongod: LocalMongod
    previews: UpdatePreviews
    upstream: TermExchange
    request: Request
    state: NamespaceState
    table: RoutingTable
    mutable_key: ShardKeyPattern | None

    @property
    def namespace(self) -> Namespace:
        """The collection."""
        return Namespace.parse(self.state.namespace)

    @property
    def default_collation(self) -> Mapping[str, Any] | None:
        """The collation of operations that specify none."""
        return self.table.collection.default_collation


@may_run_in_reactor
async def update(operation: ShardedOperation) -> bytes | None:
    """Run updates that may change a shard key as `KeyChangingUpdates`."""
    pattern = operation.mutable_key
    if pattern is None or IS_TIME_SERIES_NAMESPACE in operation.request.fields:
        return None  # routers send no update of measurements that may change a shard key
    for statement in operation.request.documents(b"updates"):
        fields = index(statement)
        query, modification = fields.get(b"q"), fields.get(b"u")
        if query is None or modification is None or query[0] != OBJECT:
            return None  # malformed: mongod reports it
        collated = is_collated(statement, fields.get(b"collation"), operation.default_collation)
        if may_change_shard_key(statement[query[2] : query[3]], statement, modification, pattern, is_collated=collated):
            await in_own_task()
            return await KeyChangingUpdates(_key_changing(operation, pattern)).run()
    return None


@may_run_in_reactor
async def find_and_modify(operation: ShardedOperation) -> bytes | None:
    """Run a findAndModify that may change a shard key as `key_changing_find_and_modify`."""
    request, pattern = operation.request, operation.mutable_key
    modification = request.fields.get(b"update")
    if pattern is None or modification is None or request.get(b"remove"):
        return None  # mongod reports a command that has both remove and update
    query = request.raw_object(b"query") or EMPTY_DOCUMENT
    collated = is_collated(request.body, request.fields.get(b"collation"), operation.default_collation)
    if not may_change_shard_key(query, request.body, modification, pattern, is_collated=collated):
        return None
    await in_own_task()
    return await key_changing_find_and_modify(_key_changing(operation, pattern))


@may_run_in_reactor
async def create_indexes(operation: ShardedOperation) -> bytes | None:
    """Refuse unique indexes that do not begin with the shard key."""
    check_not_resharding(operation.state)
    check_created_indexes(operation.request, operation.table)
    return None


@may_run_in_reactor
async def drop_indexes(operation: ShardedOperation) -> bytes | None:
    """Keep an index that supports the shard key."""
    check_not_resharding(operation.state)
    await in_own_task()
    table = operation.table
    if operation.request.get(b"index") in ("*", ["*"]):
        return await drop_all_but_needed(operation.upstream, operation.request, operation.namespace, table)
    await check_dropped_indexes(operation.upstream, operation.request, operation.namespace, table)
    return None


@may_run_in_reactor
async def convert_to_capped(operation: ShardedOperation) -> bytes | None:
    """Refuse with IllegalOperation, because capped collections cannot be sharded."""
    raise CommandError(ErrorCode.IllegalOperation, "You can't convertToCapped a sharded collection")


def _key_changing(operation: ShardedOperation, mutable_key: ShardKeyPattern) -> KeyChangingRequest:
    return KeyChangingRequest(
        operation.previews,
        operation.mongod,
        operation.upstream,
        operation.request,
        operation.namespace,
        operation.table,
        mutable_key,
        operation.state.shard,
    )


SHARDED_OPERATIONS: Final[Mapping[str, Callable[[ShardedOperation], Awaitable[bytes | None]]]] = {
    "update": update,
    "findAndModify": find_and_modify,
    "findandmodify": find_and_modify,
    "createIndexes": create_indexes,
    "dropIndexes": drop_indexes,
    "deleteIndexes": drop_indexes,
    "convertToCapped": convert_to_capped,
}
"""Functions by command name; all other commands are forwarded at once."""

_REPLACED: Final = VERSION_FIELDS | {b"index"}

_BUILD: Final = "buildUUID"

_DROPPED_ALL: Final = "non-_id indexes and non-shard key indexes dropped for collection"


def check_not_resharding(state: NamespaceState) -> None:
    """Refuse to change indexes during resharding, which has copied them already (ReshardCollectionInProgress)."""
    if state.is_resharding:
        raise CommandError(
            ErrorCode.ReshardCollectionInProgress, f"reshardCollection is in progress for {state.namespace}"
        )


def check_created_indexes(request: Request, table: RoutingTable) -> None:
    """Refuse unique indexes whose uniqueness a shard cannot enforce by itself (CannotCreateIndex)."""
    for specification in request.documents(b"indexes"):
        index = decode_document(specification)
        key = index.get("key")
        if table.collection.time_series is not None and index.get("unique"):
            continue  # mongod refuses unique indexes on time-series collections
        if isinstance(key, dict) and not table.key_pattern.allows_uniqueness_of(index):
            raise CommandError(
                ErrorCode.CannotCreateIndex,
                "cannot create index with 'unique' or 'prepareUnique' option over "
                f"{document_text(encode_document(key))} with shard key pattern {table.key_pattern}",
            )


async def check_dropped_indexes(
    upstream: TermExchange, request: Request, namespace: Namespace, table: RoutingTable
) -> None:
    """Refuse to drop the last index that supports the shard key (CannotDropShardKeyIndex)."""
    dropped = request.get(b"index")
    names = dropped if isinstance(dropped, list) else [dropped]
    indexes = await _indexes(upstream, namespace)
    # A client names an index on measurements by its key in their fields, not by the buckets' key.
    shown = await _indexes(upstream, namespace, request.get(IS_TIME_SERIES_NAMESPACE))
    dropped_names = {index["name"] for index in shown if index["name"] in names or index["key"] in names}
    kept = [index for index in indexes if index["name"] not in dropped_names]
    if len(kept) == len(indexes) or any(table.key_pattern.is_supported_by_index(index) for index in kept):
        return
    raise CommandError(
        ErrorCode.CannotDropShardKeyIndex, "Cannot drop the only compatible index for this collection's shard key"
    )


async def drop_all_but_needed(
    upstream: TermExchange, request: Request, namespace: Namespace, table: RoutingTable
) -> bytes | None:
    """Drop all indexes (``*``) except the ``_id`` index and those that support the shard key; return the reply.

    Unfinished indexes are dropped first, one build at a time: mongod accepts no other indexes in the same command.
    """
    body = without(request.body, _REPLACED)
    for unfinished in (await _unfinished(upstream, namespace)).values():
        try:
            await upstream.command(namespace.db, decode_document(append(body, encode_elements({"index": unfinished}))))
        except CommandError as error:
            if error.code != ErrorCode.IndexNotFound:  # the build has failed in between
                raise
    indexes = await _indexes(upstream, namespace)
    names = [
        index["name"]
        for index in indexes
        if index["name"] != "_id_" and not table.key_pattern.is_supported_by_index(index)
    ]
    reply = await upstream.command(namespace.db, decode_document(append(body, encode_elements({"index": names}))))
    request_id = request.message.request_id
    return op_msg(encode_document({**reply, "msg": _DROPPED_ALL}), request_id=next_request_id(), response_to=request_id)


async def _indexes(
    upstream: TermExchange, namespace: Namespace, of_measurements: object = None
) -> list[dict[str, Any]]:
    """Return the specifications of built indexes, optionally in the measurements' fields instead of the buckets'."""
    return [listed for listed in await _listed(upstream, namespace, of_measurements) if _BUILD not in listed]


async def _unfinished(upstream: TermExchange, namespace: Namespace) -> dict[UUID, list[str]]:
    """Return the names of the indexes in each unfinished build."""
    builds: dict[UUID, list[str]] = {}
    for listed in await _listed(upstream, namespace):
        if _BUILD in listed:
            builds.setdefault(UUID(bytes=bytes(listed[_BUILD])), []).append(listed["spec"]["name"])
    return builds


async def _listed(upstream: TermExchange, namespace: Namespace, of_measurements: object = None) -> list[dict[str, Any]]:
    """List the indexes as mongod does; the specification of an unfinished one is under ``spec``."""
    listing: dict[str, Any] = {"listIndexes": namespace.collection, "includeBuildUUIDs": True}
    if of_measurements:
        listing[IS_TIME_SERIES_NAMESPACE.decode()] = True
    try:
        reply = await upstream.command(namespace.db, listing)
    except CommandError as error:
        if error.code != ErrorCode.NamespaceNotFound:
            raise
        return []
    indexes: list[dict[str, Any]] = reply["cursor"]["firstBatch"]
    return indexes


_STATEMENTS: Final[Mapping[str, bytes]] = {"update": b"updates", "delete": b"deletes"}


class CountedMeasurements:
    """An update or delete whose reply counts measurements instead of buckets.

    Args:
        namespace: the buckets collection.
        request: on buckets, with the ownership filter.
    """

    def __init__(
        self, exchange: TermExchange, namespace: Namespace, request: Request, fields: TimeSeriesFields
    ) -> None:
        self._exchange = exchange
        self._namespace = namespace
        self._request = request
        self._statements = _STATEMENTS[request.name]
        self._measurements = _number_of_measurements(fields)

    async def run(self) -> bytes | None:
        """Return the reply; None if the client wants none.

        Raises:
            CommandError: mongod refuses.
            BackendError: mongod does not answer, or has answered in another term.
        """
        if self._request.message.flags & MORE_TO_COME:
            return await self._exchange.run(self._request)
        merged: dict[str, Any] = {}
        is_ordered = bool(self._request.get(b"ordered", True))
        for position, statement in enumerate(self._request.documents(self._statements)):
            reply = await self._run_statement(statement)
            if not reply["ok"]:
                return reply_document(self._request.message.request_id, reply)
            _merge(merged, reply, position)
            if is_ordered and "writeErrors" in reply:
                break
        return reply_document(self._request.message.request_id, merged)

    async def _run_statement(self, statement: bytes) -> dict[str, Any]:
        counted = await self._count(statement)
        only = element(self._statements, ARRAY, array_of_documents([statement]))
        body = append(without(self._request.body, (self._statements,)), only)
        message = self._request.message
        frame = await self._exchange.run(Request(OpMsg(op_msg(body, request_id=message.request_id))))
        assert frame is not None  # an acknowledged write has a reply, and is not relayed
        reply: dict[str, Any] = bson.decode(OpMsg(frame).body)
        if counted is not None and reply.get("n"):
            if reply.get("nModified") == reply["n"]:
                reply["nModified"] = counted
            reply["n"] = counted
        return reply

    async def _count(self, statement: bytes) -> int | None:
        """Count the measurements in the matching buckets; None if mongod refuses the query."""
        fields: dict[str, Any] = decode_document(statement)
        query = find(statement, b"q")
        assert query is not None  # present, because the statement has been translated
        match = raw_document(statement[query[2] : query[3]])
        group = {"_id": None, "n": {"$sum": self._measurements}}
        counting = {
            "aggregate": self._namespace.collection,
            "pipeline": [{"$match": match}, {"$group": group}],
            "cursor": {},
            **({"collation": fields["collation"]} if "collation" in fields else {}),
        }
        if (variables := self._request.get(b"let")) is not None:
            counting["let"] = variables
        try:
            reply = await self._exchange.command(self._namespace.db, counting)
        except CommandError:
            return None  # mongod refuses the statement as well, with its own message
        found = reply["cursor"]["firstBatch"]
        return int(found[0]["n"]) if found else 0


def _number_of_measurements(fields: TimeSeriesFields) -> dict[str, Any]:
    """Return the expression for the number of measurements in a bucket.

    A compressed bucket stores the number; any other has one time per measurement.
    """
    times = {"$objectToArray": {"$ifNull": [f"$data.{fields.time_field}", {}]}}
    return {"$cond": [{"$eq": ["$control.version", 2]}, "$control.count", {"$size": times}]}


def _merge(merged: dict[str, Any], reply: Mapping[str, Any], position: int) -> None:
    """Merge the reply to the statement at `position` into the previous ones."""
    numbers = {name: merged.get(name, 0) + reply[name] for name in ("n", "nModified") if name in reply}
    errors = [*merged.get("writeErrors", ()), *({**each, "index": position} for each in reply.get("writeErrors", ()))]
    merged |= {**reply, **numbers}
    if errors:
        merged["writeErrors"] = errors


REFUSED_DURING_MOVES: Final = frozenset({"create", "createIndexes"})


def check_not_moving(context: ShardContext, request: Request) -> None:
    """Refuse one of `REFUSED_DURING_MOVES` while its database is being moved (MovePrimaryInProgress)."""
    database = context.databases.find(request.db)
    if database is None or not database.is_moving:
        return
    state = context.namespaces.find(f"{request.db}.{request.collection}")
    if state is None or state.table is None:
        raise CommandError(
            ErrorCode.MovePrimaryInProgress,
            f"movePrimary is in progress for namespace {request.db}.{request.collection}",
        )
