"""Description, creation, change and removal of collections on the local mongod, and private ones of ``config``.

A shard keeps unfinished work for its next primary in private collections (`ConfigCollection`).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

import trio
from bson.binary import Binary
from bson.timestamp import Timestamp

from shardwright.daemon.sidecar.mongod import LocalMongod
from shardwright.sharding.namespace import Namespace
from shardwright.sharding.time_series import BUCKETS_PREFIX, TimeSeriesFields
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.rawbson import decode_value, index
from shardwright.wire.transport.cursor import DecodedCursor, RawCursor

MAJORITY: Final[Mapping[str, Any]] = {"w": "majority", "wtimeout": 60_000}
"""Write concern for data that must not be lost, with MongoDB's time limit for such writes between servers."""

LOCAL_WRITE_CONCERN: Final[Mapping[str, Any]] = {"w": 1}
"""Write concern that does not wait; mongod's default, the majority, would cost a journal flush each time."""

_CONFIG: Final = "config"

UNDROPPABLE: Final = frozenset({"system.js", "system.users"})
"""Collections that mongod drops only with their database, or by an oplog operation."""

_DROPPED_WITH_DATABASE: Final = UNDROPPABLE | {"system.profile"}
"""Collections that are not dropped one by one; mongod drops ``system.profile`` only while profiling is off."""

_NOT_OF_VIEWS: Final = ("cappedSize", "cappedMax")
"""Options of ``collMod`` that crash mongod 6.0.5 on a view; it does not refuse them."""

_NEAREST: Final = {"$readPreference": {"mode": "nearest"}}
"""Read preference with which a secondary answers too."""


class ConfigCollection:
    """One such collection, keyed by ``_id``. Writes wait for a majority by default.

    All methods raise CommandError if mongod refuses or is not primary, and BackendError if it does not answer.
    """

    def __init__(self, mongod: LocalMongod, name: str) -> None:
        self._mongod = mongod
        self._name = name

    async def all(self, *, may_be_secondary: bool = False) -> list[dict[str, Any]]:
        """Return all documents; with ``may_be_secondary`` also if the local mongod is not primary."""
        command: dict[str, Any] = {"find": self._name}
        if may_be_secondary:
            command["$readPreference"] = {"mode": "nearest"}
        return await self._read(command)

    async def all_at(self, time: Timestamp, query: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return the documents that matched a query at a cluster time, from the local mongod in any role."""
        concern = {"level": "snapshot", "atClusterTime": time}
        preference = {"mode": "nearest"}
        return await self._read(
            {"find": self._name, "filter": query, "readConcern": concern, "$readPreference": preference}
        )

    async def _read(self, command: dict[str, Any]) -> list[dict[str, Any]]:
        return await DecodedCursor(self._mongod.command, _CONFIG, command).all_documents()

    async def get(self, identity: object) -> dict[str, Any] | None:
        """Return the document with an ``_id``, or None."""
        find = {"find": self._name, "filter": {"_id": identity}, "singleBatch": True}
        found: list[dict[str, Any]] = (await self._mongod.command(_CONFIG, find))["cursor"]["firstBatch"]
        return found[0] if found else None

    async def save(
        self,
        document: Mapping[str, Any],
        *,
        write_concern: Mapping[str, Any] = MAJORITY,
        gossip: Mapping[str, Any] | None = None,
    ) -> None:
        """Insert a document, or replace the one with its ``_id``.

        Args:
            gossip: the ``$clusterTime`` that the write must come after.
        """
        update = {"q": {"_id": document["_id"]}, "u": document, "upsert": True}
        command = {"update": self._name, "updates": [update], "writeConcern": write_concern}
        await self._mongod.write(_CONFIG, {**command, **(gossip or {})})

    async def change(self, identity: object, fields: Mapping[str, Any]) -> None:
        """Set fields of the document with an ``_id``, if it exists.

        A document that embeds a client's document may exceed mongod's nesting limit. It can be stored, and single
        fields set, but it cannot be replaced.
        """
        update = {"q": {"_id": identity}, "u": {"$set": fields}}
        await self._mongod.write(_CONFIG, {"update": self._name, "updates": [update], "writeConcern": MAJORITY})

    async def remove(self, identity: object, *, write_concern: Mapping[str, Any] = MAJORITY) -> None:
        """Remove the document with an ``_id``, if it exists."""
        delete = {"q": {"_id": identity}, "limit": 1}
        await self._mongod.write(_CONFIG, {"delete": self._name, "deletes": [delete], "writeConcern": write_concern})


@dataclass(frozen=True, slots=True)
class LocalCollection:
    """One entry of ``listCollections``.

    Attributes:
        kind: ``collection``, ``view`` or ``timeseries``.
        uuid: its UUID; None for a view.
        id_index: the specification of the ``_id`` index; None for a view.
    """

    kind: str
    options: Mapping[str, Any]
    uuid: UUID | None
    id_index: Mapping[str, Any] | None


async def describe(mongod: LocalMongod, namespace: Namespace) -> LocalCollection | None:
    """Return the collection or view with a name, or None."""
    reply = await mongod.command(namespace.db, _listing(namespace))
    for entry in reply["cursor"]["firstBatch"]:
        raw_uuid = entry["info"].get("uuid")
        uuid = None if raw_uuid is None else UUID(bytes=bytes(raw_uuid))
        return LocalCollection(entry["type"], entry["options"], uuid, entry.get("idIndex"))
    return None


async def name_of(mongod: LocalMongod, db: str, uuid: UUID) -> str | None:
    """Return the name of the collection with a UUID; None if the database has no such collection."""
    wanted = {"info.uuid": Binary.from_uuid(uuid)}
    reply = await mongod.command(db, {"listCollections": 1, "filter": wanted, **_NEAREST})
    return next((str(each["name"]) for each in reply["cursor"]["firstBatch"]), None)


async def read_options(mongod: LocalMongod, namespace: Namespace) -> tuple[str, bytes] | None:
    """Return the kind and raw options of the collection or view with a name, or None."""
    for entry in await RawCursor(mongod.pool.exchange, namespace.db, _listing(namespace)).all_documents():
        fields = index(entry)
        _, _, start, end = fields[b"options"]
        return decode_value(entry, fields[b"type"]), entry[start:end]
    return None


def _listing(namespace: Namespace) -> dict[str, Any]:
    return {
        "listCollections": 1,
        "filter": {"name": namespace.collection},
        **_NEAREST,
    }


async def list_indexes(mongod: LocalMongod, namespace: Namespace) -> list[dict[str, Any]]:
    """Return the specifications of a collection's indexes, at most 64; none if it does not exist."""
    try:
        reply = await mongod.command(namespace.db, {"listIndexes": namespace.collection, **_NEAREST})
    except CommandError as error:
        if error.code != ErrorCode.NamespaceNotFound:
            raise
        return []
    indexes: list[dict[str, Any]] = reply["cursor"]["firstBatch"]
    return indexes


async def is_empty(mongod: LocalMongod, namespace: Namespace) -> bool:
    """Whether a collection has no documents."""
    find = {"find": namespace.collection, "limit": 1, "singleBatch": True, "projection": {"_id": 1}}
    reply = await mongod.command(namespace.db, find)
    return not reply["cursor"]["firstBatch"]


async def create(mongod: LocalMongod, namespace: Namespace, time_series: TimeSeriesFields | None = None) -> None:
    """Create a collection with default options, unless it exists.

    Args:
        time_series: given for the buckets of a time-series collection, which is created as a whole.

    Raises:
        CommandError: it cannot be created; NamespaceExists, the name of a time-series collection is taken.
    """
    creation: dict[str, Any] = {"create": namespace.collection}
    if time_series is not None:
        creation = {
            "create": namespace.collection.removeprefix(BUCKETS_PREFIX),
            "timeseries": time_series.to_document(),
        }
    try:
        await mongod.command(namespace.db, {**creation, "writeConcern": MAJORITY})
    except CommandError as error:
        if error.code != ErrorCode.NamespaceExists or time_series is not None:
            raise


async def create_with_uuid(
    mongod: LocalMongod,
    namespace: Namespace,
    uuid: UUID,
    options: Mapping[str, Any],
    id_index: Mapping[str, Any] | None,
) -> None:
    """Create a collection with the UUID that it has on other shards, unless it exists.

    Args:
        id_index: the specification of its ``_id`` index; None for the default one.

    Raises:
        CommandError: InvalidUUID, another collection of that name exists; or mongod refuses.
    """

    async def attempt(max_time: Mapping[str, int]) -> None:
        existing = await describe(mongod, namespace)
        if existing is not None and existing.uuid != uuid and namespace.is_logical_sessions:
            # mongod creates one for its own sessions, and accepts the cluster's as a replacement.
            await mongod.command(namespace.db, {"drop": namespace.collection, "writeConcern": MAJORITY})
            existing = None
        if existing is None:
            creation = {"create": namespace.collection, **options}
            if id_index is not None:
                creation["idIndex"] = id_index
            operation = {"op": "c", "ns": f"{namespace.db}.$cmd", "ui": Binary.from_uuid(uuid), "o": creation}
            with trio.CancelScope(shield=True):  # if cancelled, it might reach mongod after the drop of an aborted copy
                await mongod.command("admin", {"applyOps": [operation], "writeConcern": MAJORITY, **max_time})
            existing = await describe(mongod, namespace)
        if existing is None or existing.uuid != uuid:
            raise CommandError(
                ErrorCode.InvalidUUID,
                f"Cannot create collection {namespace} with UUID {uuid}: "
                f"it exists with UUID {existing and existing.uuid}",
            )

    await mongod.global_lock.between_transactions(attempt)


async def create_indexes(mongod: LocalMongod, namespace: Namespace, indexes: Sequence[Mapping[str, Any]]) -> None:
    """Create indexes with the given specifications, unless they exist."""
    if indexes:
        create = {"createIndexes": namespace.collection, "indexes": list(indexes), "writeConcern": MAJORITY}
        await change(mongod, namespace, create)


def specifications(indexes: Iterable[Mapping[str, Any]], options: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Convert indexes in the format of ``listIndexes`` to specifications for a collection with the same options.

    A listed index without a collation has the simple one; `create_indexes` would apply the collection's.
    """
    if "collation" not in options:
        return list(indexes)
    return [{"collation": {"locale": "simple"}, **each} for each in indexes]


async def change(mongod: LocalMongod, namespace: Namespace, command: Mapping[str, Any]) -> dict[str, Any]:
    """Run a command that changes the current collection, by its UUID; return the reply.

    The UUID prevents a command that reaches mongod late from changing, or creating, another collection of that name.
    mongod does not accept a UUID for views and time-series collections.

    Raises:
        CommandError: CollectionUUIDMismatch, it was dropped meanwhile; InvalidOptions, it is a view, which cannot be
            capped; or an error of mongod.
    """
    existing = None if "collectionUUID" in command else await describe(mongod, namespace)
    if existing is not None and existing.kind == "view":
        for name in _NOT_OF_VIEWS:
            if name in command:
                raise CommandError(ErrorCode.InvalidOptions, f"option not supported on a view: {name}")
    return await mongod.command(namespace.db, {**command, **uuid_argument(namespace, existing)})


async def change_granularity(mongod: LocalMongod, buckets: Namespace, options: Mapping[str, Any]) -> None:
    """Change the granularity of a time-series collection whose view is also on this shard. May be repeated.

    mongod changes the view before the buckets, but once the buckets have changed it does not touch the view.

    Raises:
        CommandError: InvalidOptions, the current granularity is coarser; or another error of mongod.
    """
    if buckets.is_time_series_buckets and await describe(mongod, buckets.measurements) is not None:
        modification = {"collMod": buckets.measurements.collection, "timeseries": options}
        await mongod.command(buckets.db, {**modification, "writeConcern": MAJORITY})


def uuid_argument(namespace: Namespace, existing: LocalCollection | None) -> dict[str, Binary]:
    """Return ``collectionUUID`` for a command about a collection; empty if mongod does not accept it."""
    if existing is None or existing.uuid is None or namespace.is_time_series_buckets:
        return {}
    return {"collectionUUID": Binary.from_uuid(existing.uuid)}


async def list_collections(mongod: LocalMongod, db: str) -> list[Namespace]:
    """Return the collections of a database that can be dropped one by one, in an order that mongod accepts.

    Views and the collections that only mongod drops are left out. ``system.views`` comes last, because mongod keeps it
    while there are buckets of time-series collections.
    """
    listing = {"listCollections": 1, "filter": {"type": "collection"}}
    entries = await DecodedCursor(mongod.command, db, listing).all_documents()
    droppable = [Namespace(db, entry["name"]) for entry in entries if entry["name"] not in _DROPPED_WITH_DATABASE]
    return sorted(droppable, key=lambda each: each.collection == "system.views")


async def has_collections(mongod: LocalMongod, db: str) -> bool:
    """Whether a database has any collections or views."""
    reply = await mongod.command(db, {"listCollections": 1, "nameOnly": True})
    return bool(reply["cursor"]["firstBatch"])


async def drop(mongod: LocalMongod, namespace: Namespace) -> None:
    """Drop the collection or view with a name, if it exists.

    A collection is dropped by its UUID, so that a command that reaches mongod late does not drop a new one of that
    name. mongod does not accept a UUID for views, time-series collections and their buckets.
    """
    existing = await describe(mongod, namespace)
    if existing is None:
        return
    command = {"drop": namespace.collection, "writeConcern": MAJORITY}
    try:
        await mongod.command(namespace.db, {**command, **uuid_argument(namespace, existing)})
    except CommandError as error:
        if error.code not in (ErrorCode.NamespaceNotFound, ErrorCode.CollectionUUIDMismatch):
            raise
