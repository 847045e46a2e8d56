"""The documents that donor and recipient of a database exchange: its unsharded collections and views, and the request.

Views are copied as documents of ``system.views``. A time-series collection has one too, for the view on its buckets.
The request to receive a database (`ReceiveDatabase`) converts to a chunk migration's request for the shared parts.
"""

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID, uuid5

from bson.binary import Binary

from shardwright.daemon.sidecar.mongod import LocalMongod
from shardwright.shardd.local_mongod.local_collections import list_indexes
from shardwright.shardd.local_mongod.moved_contents import VIEWS, create_views, drop_views
from shardwright.shardd.local_mongod.shard_key_index import all_documents, find_cursor
from shardwright.shardd.migration.recipient.recv_chunk import ReceiveRequest
from shardwright.shardd.session_history.oplog_history import ALL_IDS, ID_PATTERN
from shardwright.sharding.document_fields import required, required_uuid
from shardwright.sharding.namespace import Namespace
from shardwright.wire.rawbson import decode_document
from shardwright.wire.transport.cursor import DecodedCursor

_OF_THIS_MONGOD: Final = frozenset({"system.profile", VIEWS})
"""Collections that are not copied as such: the profile belongs to one mongod, and views are created."""

_SYSTEM: Final = "system."


@dataclass(frozen=True, slots=True)
class MovedCollection:
    """One unsharded collection.

    Attributes:
        uuid: its UUID on the donor.
        options: its options, as ``listCollections`` shows them, without the UUID.
        id_index: the specification of the ``_id`` index; None if it has none.
        indexes: the specifications of the others.
    """

    namespace: Namespace
    uuid: UUID
    options: Mapping[str, Any]
    id_index: Mapping[str, Any] | None
    indexes: tuple[Mapping[str, Any], ...]

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> "MovedCollection":
        """Read the document form."""
        return cls(
            Namespace.parse(document["ns"]),
            UUID(bytes=bytes(document["uuid"])),
            document["options"],
            document.get("idIndex"),
            tuple(document["indexes"]),
        )

    def to_document(self) -> dict[str, Any]:
        """Return the document form."""
        document: dict[str, Any] = {
            "ns": str(self.namespace),
            "uuid": Binary.from_uuid(self.uuid),
            "options": self.options,
            "indexes": list(self.indexes),
        }
        return document if self.id_index is None else {**document, "idIndex": self.id_index}

    @property
    def name(self) -> str:
        """The name without the database."""
        return self.namespace.collection

    @property
    def is_written_in_transactions(self) -> bool:
        """Whether mongod allows transactions to write it."""
        return not self.options.get("capped") and not self.namespace.collection.startswith(_SYSTEM)


@dataclass(frozen=True, slots=True)
class MovedDatabase:
    """The collections and views of a database that move.

    Attributes:
        collections: the unsharded collections, by UUID.
        views: the documents of ``system.views``, raw, by the namespace of the view.
    """

    collections: Mapping[UUID, MovedCollection]
    views: Mapping[str, bytes]


def copy_uuid(move_id: UUID, uuid: UUID) -> UUID:
    """Return a collection copy's UUID. It is new for each attempt, as the collection may come back here later."""
    return UUID(bytes=uuid5(move_id, uuid.hex).bytes, version=4)  # mongod accepts no other version


async def list_moved(mongod: LocalMongod, db: str, sharded: Container[str]) -> MovedDatabase:
    """List the collections and views that move.

    Args:
        sharded: the namespaces of its sharded collections.
    """
    collections: dict[UUID, MovedCollection] = {}
    listing = {"listCollections": 1, "filter": {"type": "collection"}}
    has_views = False
    for entry in await DecodedCursor(mongod.command, db, listing).all_documents():
        namespace = Namespace(db, entry["name"])
        has_views = has_views or namespace.collection == VIEWS
        if namespace.collection in _OF_THIS_MONGOD or str(namespace) in sharded:
            continue
        uuid = UUID(bytes=bytes(entry["info"]["uuid"]))
        specifications = await list_indexes(mongod, namespace)
        indexes = tuple(each for each in specifications if each["name"] != "_id_" and not each.get("clustered"))
        options = {name: value for name, value in entry["options"].items() if name != "uuid"}
        collections[uuid] = MovedCollection(namespace, uuid, options, entry.get("idIndex"), indexes)
    return MovedDatabase(collections, await _views(mongod, db) if has_views else {})


async def _views(mongod: LocalMongod, db: str) -> dict[str, bytes]:
    views = {}
    for raw in await find_cursor(mongod, Namespace(db, VIEWS), {"sort": {"_id": 1}}).all_documents():
        views[str(decode_document(raw)["_id"])] = raw
    return views


async def put_views(mongod: LocalMongod, db: str, views: Sequence[bytes]) -> None:
    """Replace the views of a database on this shard, which has none of its own."""
    namespace = Namespace(db, VIEWS)
    present = await all_documents(mongod, namespace, {})
    if sorted(present) == sorted(views):
        return
    await drop_views(mongod, db, [str(decode_document(each)["_id"]) for each in present])
    await create_views(mongod, db, views)


@dataclass(frozen=True, slots=True)
class ReceiveDatabase:
    """A request to receive a database.

    Attributes:
        move_id: identifies the donor's attempt.
        donor: id of the donor.
        recipient: id of this shard.
    """

    db: str
    move_id: UUID
    donor: str
    recipient: str

    @classmethod
    def from_document(cls, db: str, document: Mapping[str, object], recipient: str) -> "ReceiveDatabase":
        """Read the arguments of a command, or raise NoSuchKey or TypeMismatch."""
        return cls(db, required_uuid(document, "moveId"), required(document, "fromShard", str), recipient)

    @property
    def session_id(self) -> str:
        """The session id of the requests to the donor."""
        return f"{self.db}_{self.move_id}"

    def of_collection(self, namespace: Namespace, uuid: UUID | None = None) -> ReceiveRequest:
        """Return the request to receive a collection as if it were one chunk with ``_id`` as its shard key."""
        return ReceiveRequest(
            migration_id=self.move_id,
            session_id=self.session_id,
            namespace=namespace,
            collection_uuid=uuid,
            pattern=ID_PATTERN,
            range=ALL_IDS,
            donor=self.donor,
            donor_connection_string="",
            recipient=self.recipient,
            lsid={},
            txn_number=0,
            secondary_throttle=False,
            write_concern={},
        )
