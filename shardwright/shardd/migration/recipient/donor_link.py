"""The recipient's commands to the donor: pulling the range, and creating its collection before the clone.

A `DonorConnection` reconnects and retries when the network fails. Batches are numbered: the same number gives the same
batch again, so nothing is lost with a reply. MongoDB's donors ignore the numbers.

**The collection** (`copy_collection`) gets the donor's UUID, options and indexes. The rules and refusals come from
MongoDB 6.0's ``MigrationDestinationManager``. If the recipient already has the collection, its options are aligned with
the donor's. A shard that owns no chunks of a collection may have missed changes to its options. A shard that owns
chunks has not: there, different options are a sign of a ``collMod`` that failed halfway, and only the user can decide
which ones are right.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol
from uuid import UUID

import bson
from bson.timestamp import Timestamp

from shardwright.shardd.context.shard_context import ShardContext
from shardwright.shardd.exchange.remote_sets import repeated
from shardwright.shardd.local_mongod import local_collections
from shardwright.shardd.local_mongod.local_collections import MAJORITY, LocalCollection, change
from shardwright.shardd.local_mongod.reserved_sessions import ReservedSessions, check_reply, required_array
from shardwright.shardd.migration.active_migrations import ClientLoad
from shardwright.shardd.migration.recipient.recv_chunk import ReceiveRequest
from shardwright.shardd.range_deleter.range_deleter_service import RangeDeletions
from shardwright.shardd.session_history.migrated_history import HistoryTable
from shardwright.sharding.catalog.consistency import MODIFIABLE, different_options, option_value
from shardwright.sharding.namespace import Namespace
from shardwright.wire.error_codes import Category, ErrorCode, has_category
from shardwright.wire.errors import BackendError, CommandError, RemoteProtocolError
from shardwright.wire.frames import next_request_id
from shardwright.wire.logger import get_logger
from shardwright.wire.message import op_msg
from shardwright.wire.rawbson import (
    TIMESTAMP,
    Span,
    array_documents,
    decode_exactly,
    decode_value,
    encode_document,
    find,
)
from shardwright.wire.transport.client import Connection, response_body
from shardwright.wire.transport.replica_set import ReplicaSetClient

logger = get_logger("shardd.migration.recipient")


@dataclass(frozen=True, slots=True)
class CloneBatch:
    """One batch of cloned documents.

    Attributes:
        objects: the array of documents in it.
        position: the time after which the donor follows its oplog; None if the donor does not report it.
        is_donor_busy: whether clients keep the donor busy.
    """

    reply: bytes
    objects: Span
    position: Timestamp | None
    is_donor_busy: bool = False

    @property
    def is_last(self) -> bool:
        """Whether this is the empty batch that ends the clone."""
        return self.objects[3] - self.objects[2] <= 5  # the size of an empty array


@dataclass(frozen=True, slots=True)
class Modifications:
    """One batch of changes since the clone began.

    Attributes:
        deleted: raw ``{_id}`` of documents that are no longer in the range.
        reload: current versions of changed documents, raw.
        position: the time of the last change that the donor has sent; None if the donor does not report it.
    """

    deleted: list[bytes]
    reload: list[bytes]
    position: Timestamp | None

    @property
    def is_empty(self) -> bool:
        """Whether the batch has no changes."""
        return not self.deleted and not self.reload


class Pulled(Protocol):
    """The source of a pull: the shard, and for logs the collection and the session."""

    @property
    def namespace(self) -> Namespace:
        """The collection."""

    @property
    def donor(self) -> str:
        """Id of the donor."""

    @property
    def session_id(self) -> str:
        """The migration session id."""


class DonorConnection:
    """One connection to the donor's primary, reopened when it breaks. Only one task may use it at a time."""

    def __init__(self, context: ShardContext, request: Pulled) -> None:
        self._context = context
        self._request = request
        self._connection: Connection | None = None
        self._give_back: Callable[[Connection], None] = Connection.close

    async def command(self, db: str, command: Mapping[str, Any]) -> bytes:
        """Run an idempotent command; return the raw body of its reply.

        It is retried after network failures, and while the donor has no primary.

        Raises:
            CommandError: the donor refused, or could not be reached for too long.
        """
        body = bson.encode({**command, "$db": db})

        async def ask() -> bytes:
            try:
                return await self._exchange(body)
            except BackendError as error:
                message = f"could not reach shard {self._request.donor}: {error}"
                raise CommandError(ErrorCode.HostUnreachable, message) from error

        def log(error: CommandError) -> None:
            logger.warning(
                "Could not reach the donor",
                namespace=str(self._request.namespace),
                shard=self._request.donor,
                session=self._request.session_id,
                command=next(iter(command)),
                error=str(error),
            )

        return await repeated(ask, log)

    def close(self) -> None:
        """Close the connection; a running command on it fails."""
        if self._connection is not None:
            self._connection.close()
            self._give_back(self._connection)
            self._connection = None

    async def _exchange(self, body: bytes) -> bytes:
        client = await self._context.shard_client(self._request.donor)
        connection = self._connection
        if connection is None or connection.is_closed:
            self.close()
            address = await client.select()
            connection = self._connection = await client.borrow(address)
            self._give_back = partial(client.give_back, address)
        try:
            reply = response_body(await connection.exchange(op_msg(body, request_id=next_request_id())))
            check_reply(reply)
        except (BackendError, RemoteProtocolError) as error:
            self._lose(client, connection, error)
            raise
        except CommandError as error:
            if has_category(error.code, Category.NOT_PRIMARY):
                self._lose(client, connection, error)
            raise
        return reply

    def _lose(
        self,
        client: ReplicaSetClient,
        connection: Connection,
        error: BackendError | CommandError | RemoteProtocolError,
    ) -> None:
        """Drop a connection that failed, or that no longer leads to the donor's primary."""
        client.on_failure(connection.address, error)
        self.close()


class DonorLink:
    """Sends commands to the donor of one migration. Methods raise CommandError as `DonorConnection.command` does.

    Cloned documents, session history and everything else have a connection each, so that they do not wait for one
    another.
    """

    def __init__(self, context: ShardContext, request: ReceiveRequest) -> None:
        self.request = request
        self._documents = DonorConnection(context, request)
        self._others = DonorConnection(context, request)
        self.history = DonorConnection(context, request)
        self._mods_number = 0

    async def clone_batch(self, number: int) -> CloneBatch:
        """Fetch a batch of the clone.

        Args:
            number: the number of the last batch fetched, or the next; they start at 0.
        """
        reply = await self._documents.command("admin", self._command("_migrateClone", number))
        busy = find(reply, b"busy")
        is_busy = busy is not None and bool(decode_value(reply, busy))
        return CloneBatch(reply, required_array(reply, b"objects"), _position(reply), is_busy)

    async def modifications(self) -> Modifications:
        """Fetch the next batch of modifications, which acknowledges that the last one has been applied."""
        reply = await self._others.command("admin", self._command("_transferMods", self._mods_number))
        self._mods_number += 1
        deleted, reload = (array_documents(reply, required_array(reply, name)) for name in (b"deleted", b"reload"))
        return Modifications(deleted, reload, _position(reply))

    async def cursor_documents(self, db: str, command: Mapping[str, Any]) -> list[bytes]:
        """Return the raw documents of a command whose cursor has a single batch, such as ``listIndexes``."""
        reply = await self._others.command(db, command)
        cursor = find(reply, b"cursor")
        if cursor is None:
            raise CommandError(ErrorCode.FailedToParse, f"the donor's reply to {next(iter(command))} has no cursor")
        batch = find(reply, b"firstBatch", cursor[2])
        if batch is None:
            raise CommandError(ErrorCode.FailedToParse, f"the donor's reply to {next(iter(command))} has no batch")
        return array_documents(reply, batch)

    def close(self) -> None:
        """Close the connections."""
        for connection in (self._documents, self._others, self.history):
            connection.close()

    def _command(self, name: str, number: int) -> dict[str, Any]:
        return {name: str(self.request.namespace), "sessionId": self.request.session_id, "number": number}


def _position(reply: bytes) -> Timestamp | None:
    span = find(reply, b"position")
    if span is None or span[0] != TIMESTAMP:
        return None
    position: Timestamp = decode_value(reply, span)
    return position


@dataclass(frozen=True, slots=True)
class RecipientPeers:
    """Components of this shard daemon that recipients use.

    Attributes:
        sessions: the reserved sessions for document writes, which users' change streams leave out.
        client_load: the load of client operations on this daemon.
    """

    range_deletions: RangeDeletions
    sessions: ReservedSessions
    history_table: HistoryTable
    client_load: ClientLoad


async def align_options(
    context: ShardContext, namespace: Namespace, local: LocalCollection, wanted: Mapping[str, Any], *, owns_chunks: bool
) -> None:
    """Change the options of a local collection to those on the donor.

    Args:
        wanted: the options on the donor.
        owns_chunks: whether this shard owns chunks of it.

    Raises:
        CommandError: InvalidOptions, they differ, and cannot or must not be changed.
    """
    different = different_options(local.options, wanted)
    if not different:
        return
    if owns_chunks or not MODIFIABLE.keys() >= set(different):
        raise CommandError(
            ErrorCode.InvalidOptions,
            f"the options {', '.join(different)} of the collection {namespace} are not those that it has on the donor",
        )
    logger.info("Applying the donor's collection options", namespace=str(namespace), options=different)
    modify = {"collMod": namespace.collection, **{name: option_value(name, wanted) for name in different}}
    await change(context.mongod, namespace, {**modify, "writeConcern": MAJORITY})


@dataclass(frozen=True, slots=True)
class DonorCollection:
    """The collection on the donor.

    Attributes:
        options: its options, as ``listCollections`` shows them.
        id_index: the specification of the ``_id`` index.
        indexes: the specifications of the others.
    """

    uuid: UUID
    options: Mapping[str, Any]
    id_index: Mapping[str, Any] | None
    indexes: Sequence[Mapping[str, Any]]


async def describe_on_donor(link: DonorLink) -> DonorCollection:
    """Query the donor for the collection.

    Raises NamespaceNotFound if it does not exist, and InvalidUUID if its UUID is not the request's.
    """
    request = link.request
    namespace = request.namespace
    listing = {"listCollections": 1, "filter": {"name": namespace.collection}}
    found = [decode_exactly(each) for each in await link.cursor_documents(namespace.db, listing)]
    if not found or "uuid" not in found[0]["info"]:
        raise CommandError(ErrorCode.NamespaceNotFound, f"donor shard has no collection {namespace}")
    entry = found[0]
    uuid = UUID(bytes=bytes(entry["info"]["uuid"]))
    if request.collection_uuid not in (None, uuid):
        raise CommandError(
            ErrorCode.InvalidUUID,
            f"the collection {namespace} of the donor has the UUID {uuid}, not {request.collection_uuid}",
        )
    specifications = await link.cursor_documents(namespace.db, {"listIndexes": namespace.collection})
    decoded = [decode_exactly(each) for each in specifications]
    indexes = [each for each in decoded if each["name"] != "_id_" and not each.get("clustered")]
    return DonorCollection(uuid, entry["options"], entry.get("idIndex"), indexes)


async def copy_collection(context: ShardContext, namespace: Namespace, donor: DonorCollection) -> None:
    """Create the collection and its missing indexes, and align its options with the donor's.

    Raises InvalidUUID if another collection of that name exists, InvalidOptions if its options differ, and
    CannotCreateCollection if an index is missing and the collection has documents.
    """
    mongod = context.mongod
    local = await local_collections.describe(mongod, namespace)
    if local is None:
        options = {name: value for name, value in donor.options.items() if name != "uuid"}
        await local_collections.create_with_uuid(mongod, namespace, donor.uuid, options, donor.id_index)
        context.namespace(str(namespace)).forget()
    else:
        await local_collections.create_with_uuid(mongod, namespace, donor.uuid, {}, None)  # checks the UUID alone
        state = context.namespace(str(namespace))
        if not state.is_known:
            await context.refresher.refresh_collection(state)
        owns_chunks = state.table is not None and state.table.chunk_count_of(state.shard) > 0
        await align_options(context, namespace, local, donor.options, owns_chunks=owns_chunks)
        if state.table is not None and not owns_chunks:
            await _drop_foreign_indexes(context, namespace, donor.indexes)
    present = await local_collections.list_indexes(mongod, namespace)
    missing = [each for each in donor.indexes if not any(_is_same(each, other) for other in present)]
    if missing and not await local_collections.is_empty(mongod, namespace):
        raise CommandError(
            ErrorCode.CannotCreateCollection,
            f"aborting, shard is missing {len(missing)} indexes and collection is not empty. "
            "Non-trivial index creation should be scheduled manually",
        )
    await local_collections.create_indexes(mongod, namespace, local_collections.specifications(missing, donor.options))


async def _drop_foreign_indexes(
    context: ShardContext, namespace: Namespace, wanted: Sequence[Mapping[str, Any]]
) -> None:
    """Drop the indexes that the donor does not have: they are out of date on a shard without chunks."""
    for each in await local_collections.list_indexes(context.mongod, namespace):
        if each["name"] == "_id_" or each.get("clustered") or any(_is_same(each, other) for other in wanted):
            continue
        logger.info("Dropping an index that the donor does not have", namespace=str(namespace), index=each["name"])
        drop = {"dropIndexes": namespace.collection, "index": each["name"], "writeConcern": MAJORITY}
        await local_collections.change(context.mongod, namespace, drop)


def _is_same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two specifications describe the same index; the order of fields matters only in its key."""
    return dict(one) == dict(other) and encode_document(one["key"]) == encode_document(other["key"])
