"""The recipient's commands to the donor, with reconnects and retries when the network fails.

Batches are numbered: the same number gives the same batch again, so nothing is lost with a reply. MongoDB's donors
ignore the numbers.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import bson
from bson.timestamp import Timestamp

from shardwright.shardd.cluster.network import repeated
from shardwright.shardd.context.shard_context import ShardContext
from shardwright.shardd.local_mongod.reserved_sessions import ReservedSessions
from shardwright.shardd.local_mongod.reserved_transaction import check_reply, required_array
from shardwright.shardd.migration.recipient.request import ReceiveRequest
from shardwright.shardd.migration.throttling import ClientLoad
from shardwright.shardd.range_deleter.range_deletions import RangeDeletions
from shardwright.shardd.session_history.migrated_history import HistoryTable
from shardwright.sharding.namespace import Namespace
from shardwright.wire.error_codes import Category, ErrorCode, has_category
from shardwright.wire.errors import BackendError, CommandError, RemoteProtocolError
from shardwright.wire.frames import next_request_id
from shardwright.wire.logger import get_logger
from shardwright.wire.message import op_msg
from shardwright.wire.rawbson import TIMESTAMP, Span, array_documents, decode_value, find
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
