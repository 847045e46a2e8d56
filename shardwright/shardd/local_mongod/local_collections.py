"""Collections as they are on the local mongod: looking at them, creating and dropping them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

import bson
from bson.binary import Binary
from bson.int64 import Int64

from shardwright.daemon.sidecar.mongod import LocalMongod
from shardwright.shardd.local_mongod.write_concern import MAJORITY
from shardwright.sharding.namespace import Namespace
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.frames import next_request_id
from shardwright.wire.message import op_msg
from shardwright.wire.rawbson import array_documents, decode_value, find, index
from shardwright.wire.transport.client import decode_reply, response_body

_BUCKETS: Final = "system.buckets."
"""What the names of the collections begin with that hold the documents of time-series collections."""


@dataclass(frozen=True, slots=True)
class LocalCollection:
    """One entry of ``listCollections``.

    Attributes:
        kind: ``collection``, ``view`` or ``timeseries``.
        options: those it was created with.
        uuid: None for a view.
        id_index: the specification of the ``_id`` index, None for a view.
    """

    kind: str
    options: Mapping[str, Any]
    uuid: UUID | None
    id_index: Mapping[str, Any] | None


async def describe(mongod: LocalMongod, namespace: Namespace) -> LocalCollection | None:
    """What is there under a name, None if nothing."""
    reply = await mongod.command(namespace.db, _listing(namespace))
    for entry in reply["cursor"]["firstBatch"]:
        raw_uuid = entry["info"].get("uuid")
        uuid = None if raw_uuid is None else UUID(bytes=bytes(raw_uuid))
        return LocalCollection(entry["type"], entry["options"], uuid, entry.get("idIndex"))
    return None


async def read_options(mongod: LocalMongod, namespace: Namespace) -> tuple[str, bytes] | None:
    """The kind of what is there under a name, and its options as mongod has them, raw; None if nothing is there."""
    body = bson.encode({**_listing(namespace), "$db": namespace.db})
    frame = await mongod.pool.exchange(op_msg(body, request_id=next_request_id()))
    decode_reply(frame)  # raises the error that it may tell of
    reply = response_body(frame)
    batch = find(reply, b"firstBatch", index(reply)[b"cursor"][2])
    assert batch is not None
    for entry in array_documents(reply, batch):
        fields = index(entry)
        _, _, start, end = fields[b"options"]
        return decode_value(entry, fields[b"type"]), entry[start:end]
    return None


def _listing(namespace: Namespace) -> dict[str, Any]:
    return {
        "listCollections": 1,
        "filter": {"name": namespace.collection},
        "$readPreference": {"mode": "nearest"},
    }


async def list_indexes(mongod: LocalMongod, namespace: Namespace) -> list[dict[str, Any]]:
    """The specifications of a collection's indexes, none if it does not exist. No collection has more than 64."""
    try:
        reply = await mongod.command(
            namespace.db, {"listIndexes": namespace.collection, "$readPreference": {"mode": "nearest"}}
        )
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


async def create(mongod: LocalMongod, namespace: Namespace) -> None:
    """Create a collection with default options; one that is there is left as it is.

    Raises:
        CommandError: it can't be created.
    """
    try:
        await mongod.command(namespace.db, {"create": namespace.collection, "writeConcern": MAJORITY})
    except CommandError as error:
        if error.code != ErrorCode.NamespaceExists:
            raise


async def create_with_uuid(
    mongod: LocalMongod,
    namespace: Namespace,
    uuid: UUID,
    options: Mapping[str, Any],
    id_index: Mapping[str, Any] | None,
) -> None:
    """Create a collection under a given UUID, as it has on the other shards; the same again is fine.

    Raises:
        CommandError: InvalidUUID, another collection of that name exists.
    """
    existing = await describe(mongod, namespace)
    if existing is None:
        creation = {"create": namespace.collection, **options}
        if id_index is not None:
            creation["idIndex"] = id_index
        operation = {"op": "c", "ns": f"{namespace.db}.$cmd", "ui": Binary.from_uuid(uuid), "o": creation}
        await mongod.command("admin", {"applyOps": [operation], "writeConcern": MAJORITY})
        existing = await describe(mongod, namespace)
    if existing is None or existing.uuid != uuid:
        raise CommandError(
            ErrorCode.InvalidUUID,
            f"Cannot create collection {namespace} with UUID {uuid}: it exists with UUID {existing and existing.uuid}",
        )


async def create_indexes(mongod: LocalMongod, namespace: Namespace, indexes: Sequence[Mapping[str, Any]]) -> None:
    """Create indexes of given specifications; those that are there are left as they are.

    Raises:
        CommandError: they can't be created.
    """
    if indexes:
        create = {"createIndexes": namespace.collection, "indexes": list(indexes), "writeConcern": MAJORITY}
        await change(mongod, namespace, create)


async def change(mongod: LocalMongod, namespace: Namespace, command: Mapping[str, Any]) -> dict[str, Any]:
    """Run a command that changes an existing collection: the one that is there now, by its UUID; returns the reply.

    One that reaches mongod late does not change, or create, another collection of that name. Views and time-series
    collections have no UUID that mongod takes.

    Raises:
        CommandError: CollectionUUIDMismatch, it was dropped meanwhile; or what mongod answers.
    """
    existing = None if "collectionUUID" in command else await describe(mongod, namespace)
    return await mongod.command(namespace.db, {**command, **uuid_argument(namespace, existing)})


def uuid_argument(namespace: Namespace, existing: LocalCollection | None) -> dict[str, Binary]:
    """``collectionUUID`` for a command about a collection; nothing where mongod takes none."""
    if existing is None or existing.uuid is None or namespace.collection.startswith(_BUCKETS):
        return {}
    return {"collectionUUID": Binary.from_uuid(existing.uuid)}


async def list_collections(mongod: LocalMongod, db: str) -> list[Namespace]:
    """The collections of a database that can be dropped one by one: no views, whose definitions are in one of them.

    They come in an order in which mongod lets all of them be dropped: those definitions last, since it keeps them while
    there are buckets of time-series collections.
    """
    namespaces: list[Namespace] = []
    command: dict[str, Any] = {"listCollections": 1, "filter": {"type": "collection"}}
    while True:
        cursor = (await mongod.command(db, command))["cursor"]
        for entry in cursor.get("firstBatch") or cursor.get("nextBatch") or ():
            namespaces.append(Namespace(db, entry["name"]))
        if not cursor["id"]:
            # A profiler that is on holds on to what it writes to.
            droppable = [each for each in namespaces if each.collection != "system.profile"]
            return sorted(droppable, key=lambda each: each.collection == "system.views")
        command = {"getMore": Int64(cursor["id"]), "collection": "$cmd.listCollections"}


async def has_collections(mongod: LocalMongod, db: str) -> bool:
    """Whether there are collections or views of a database."""
    reply = await mongod.command(db, {"listCollections": 1, "nameOnly": True})
    return bool(reply["cursor"]["firstBatch"])


async def drop(mongod: LocalMongod, namespace: Namespace) -> None:
    """Drop whatever has a name; what is not there is fine.

    A collection is dropped by its UUID, so that a command that reaches mongod late does not take one that was created
    since. Mongod takes no UUID for views, time-series collections and their buckets.

    Raises:
        CommandError: it can't be dropped.
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
