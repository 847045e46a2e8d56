"""The rules for indexes of sharded collections, which mongod does not enforce because it knows no sharding."""

from typing import Any, Final
from uuid import UUID

from shardwright.shardd.exchange.term_exchange import TermExchange
from shardwright.shardd.metadata.namespace_state import NamespaceState
from shardwright.sharding.bson_text import document_text
from shardwright.sharding.namespace import Namespace
from shardwright.sharding.routing_table import RoutingTable
from shardwright.sharding.time_series import IS_TIME_SERIES_NAMESPACE
from shardwright.sharding.versions import VERSION_FIELDS
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.frames import next_request_id
from shardwright.wire.message import op_msg
from shardwright.wire.rawbson import append, decode_document, encode_document, encode_elements, without
from shardwright.wire.request import Request

_REPLACED: Final = VERSION_FIELDS | {b"index"}

_BUILD: Final = "buildUUID"

_DROPPED_ALL: Final = "non-_id indexes and non-shard key indexes dropped for collection"


def check_not_resharding(state: NamespaceState) -> None:
    """Refuse to change indexes while the documents are copied to a collection that has the present ones.

    Raises:
        CommandError: ReshardCollectionInProgress.
    """
    if state.is_resharding:
        raise CommandError(
            ErrorCode.ReshardCollectionInProgress, f"reshardCollection is in progress for {state.namespace}"
        )


def check_created_indexes(request: Request, table: RoutingTable) -> None:
    """Refuse unique indexes whose uniqueness a shard cannot enforce by itself.

    Raises:
        CommandError: CannotCreateIndex.
    """
    for specification in request.documents(b"indexes"):
        index = decode_document(specification)
        key = index.get("key")
        if table.collection.time_series is not None and index.get("unique"):
            continue  # the mongod says that there are none on such collections
        if isinstance(key, dict) and not table.key_pattern.allows_uniqueness_of(index):
            raise CommandError(
                ErrorCode.CannotCreateIndex,
                "cannot create index with 'unique' or 'prepareUnique' option over "
                f"{document_text(encode_document(key))} with shard key pattern {table.key_pattern}",
            )


async def check_dropped_indexes(
    upstream: TermExchange, request: Request, namespace: Namespace, table: RoutingTable
) -> None:
    """Refuse to drop the last index that supports the shard key.

    Raises:
        CommandError: CannotDropShardKeyIndex.
    """
    dropped = request.get(b"index")
    names = dropped if isinstance(dropped, list) else [dropped]
    indexes = await _indexes(upstream, namespace)
    # An index of measurements is named by its key in their terms.
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
    """Drop all indexes (``*``) except the one on ``_id`` and those that support the shard key; returns the reply.

    Those that are being built are dropped first, together with those of the same command: mongod takes no others with
    them.
    """
    body = without(request.body, _REPLACED)
    for unfinished in (await _unfinished(upstream, namespace)).values():
        try:
            await upstream.command(namespace.db, decode_document(append(body, encode_elements({"index": unfinished}))))
        except CommandError as error:
            if error.code != ErrorCode.IndexNotFound:  # as for one that has failed meanwhile
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
    """The specifications of the indexes that have been built; those of buckets also in the terms of measurements."""
    return [index for index in await _listed(upstream, namespace, of_measurements) if _BUILD not in index]


async def _unfinished(upstream: TermExchange, namespace: Namespace) -> dict[UUID, list[str]]:
    """The names of the indexes that are being built, by build."""
    builds: dict[UUID, list[str]] = {}
    for index in await _listed(upstream, namespace):
        if _BUILD in index:
            builds.setdefault(UUID(bytes=bytes(index[_BUILD])), []).append(index["spec"]["name"])
    return builds


async def _listed(upstream: TermExchange, namespace: Namespace, of_measurements: object = None) -> list[dict[str, Any]]:
    """As mongod lists the indexes: the specification of one that is being built is under ``spec``."""
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
