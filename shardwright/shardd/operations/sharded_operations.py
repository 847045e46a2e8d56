"""Special handling of operations on sharded collections, because mongod does not know that they are sharded.

Each function is called after an operation has been admitted. It returns the frame of the reply, or None if the request
is to be forwarded like any other.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from shardwright.daemon.sidecar.mongod import LocalMongod
from shardwright.shardd.exchange.term_exchange import TermExchange
from shardwright.shardd.metadata.namespace_state import NamespaceState
from shardwright.shardd.operations.sharded_indexes import (
    check_created_indexes,
    check_dropped_indexes,
    check_not_resharding,
    drop_all_but_needed,
)
from shardwright.shardd.shard_key_updates.detection import is_collated, may_change_shard_key
from shardwright.shardd.shard_key_updates.key_changing_find_and_modify import key_changing_find_and_modify
from shardwright.shardd.shard_key_updates.key_changing_request import KeyChangingRequest
from shardwright.shardd.shard_key_updates.key_changing_updates import KeyChangingUpdates
from shardwright.shardd.shard_key_updates.update_preview import UpdatePreviews
from shardwright.sharding.namespace import Namespace
from shardwright.sharding.routing_table import RoutingTable
from shardwright.sharding.shard_key import ShardKeyPattern
from shardwright.sharding.time_series import IS_TIME_SERIES_NAMESPACE
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.rawbson import EMPTY_DOCUMENT, OBJECT, index
from shardwright.wire.request import Request
from shardwright.wire.transport.request_loop import in_own_task, may_run_in_reactor


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
        """Its collection."""
        return Namespace.parse(self.state.namespace)

    @property
    def default_collation(self) -> Mapping[str, Any] | None:
        """The collation of operations that name none."""
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
            return None  # malformed, which mongod reports
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
        return None  # nor may one remove and update, which mongod reports
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
    """Refuse: capped collections cannot be sharded.

    Raises:
        CommandError: IllegalOperation.
    """
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
"""By the command's name; all other commands are forwarded at once."""
