"""A request with updates that may change shard keys. Each is previewed, checked, and executed as previewed."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeVar

from bson.int64 import Int64

from shardwright.daemon.sidecar.mongod import LocalMongod
from shardwright.shardd.exchange.term_exchange import TermExchange
from shardwright.shardd.exchange.time_limit import seconds_allowed
from shardwright.shardd.session_history.statement import session_of
from shardwright.shardd.shard_key_updates.key_changes import KeyChange, is_collated
from shardwright.shardd.shard_key_updates.previewed_updates import FINDING_NOTHING, Preview
from shardwright.shardd.shard_key_updates.update_preview import UpdatePreviews
from shardwright.sharding.namespace import Namespace
from shardwright.sharding.operation_session import AUTOCOMMIT
from shardwright.sharding.owner_changes import MAY_CHANGE_OWNER
from shardwright.sharding.routing_table import RoutingTable
from shardwright.sharding.shard_key import ShardKeyPattern
from shardwright.sharding.targeting.exact_key import exact_shard_key
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.frames import next_request_id
from shardwright.wire.limits import check_size
from shardwright.wire.message import op_msg
from shardwright.wire.rawbson import Span, encode_document, raw_document
from shardwright.wire.request import Request

_ATTEMPTS_MAX: Final = 100
"""Maximum number of previews of one update; each repetition means that another writer has made progress."""

_OF_NO_STATEMENT: Final = 2**31 - 1
"""A statement id that no write has."""

Reply = TypeVar("Reply", contravariant=True)
Made = TypeVar("Made")


class OvertakenTest(Protocol[Reply]):
    """A test of a reply for an intervening write (see `shardd.shard_key_updates.previewed_updates`)."""

    def __call__(self, preview: Preview, reply: Reply, /, *, is_last: bool) -> bool: ...


@dataclass(frozen=True, slots=True)
class KeyChangingRequest:
    """An ``update`` or a ``findAndModify`` on a sharded collection.

    Attributes:
        pattern: the part of the shard key that can change.
        may_change_key: whether the request's transaction, if any, may change shard keys.
    """

    previews: UpdatePreviews
    mongod: LocalMongod
    upstream: TermExchange
    request: Request
    namespace: Namespace
    table: RoutingTable
    pattern: ShardKeyPattern
    shard: str
    may_change_key: bool = True

    @property
    def is_retryable(self) -> bool:
        """Whether it has a transaction number."""
        return b"txnNumber" in self.request.fields

    @property
    def is_in_transaction(self) -> bool:
        """Whether it is part of a client's transaction."""
        return AUTOCOMMIT in self.request.fields

    @property
    def may_change_owner(self) -> bool:
        """Whether its sender inserts a document on its new shard."""
        return MAY_CHANGE_OWNER in self.request.fields

    def is_collated(self, document: bytes, fields: Mapping[bytes, Span]) -> bool:
        """Whether a collation other than the simple one is in force for an update with these fields."""
        return is_collated(document, fields.get(b"collation"), self.table.collection.default_collation)

    async def has_begun(self) -> bool:
        """Whether the request is a retry that mongod has already executed in part, maybe in a transaction."""
        lsid = self.request.fields.get(b"lsid")
        session = None if lsid is None or not self.is_retryable else session_of(self.request.body, lsid)
        if session is None:
            return False
        number = Int64(self.request.get(b"txnNumber"))
        of_session, of_child = ({name: raw_document(session)} for name in ("_id", "parentLsid"))
        begun = {"$or": [{**of_session, "txnNum": number}, {**of_child, "_id.txnNumber": number}]}
        reply = await self.mongod.command("config", {"find": "transactions", "filter": begun, "limit": 1})
        return bool(reply["cursor"]["firstBatch"])

    def inserts_under_other_key(self, query: bytes, preview: Preview) -> bool:
        """Whether a retryable upsert inserts a document with another shard key than the one that routed it."""
        if not self.is_retryable or preview.before is not None or preview.after is None:
            return False
        pattern = self.table.key_pattern
        routed_by = exact_shard_key(query, pattern)
        return routed_by is None or pattern.key_bytes(routed_by) != pattern.key_bytes_of_document(preview.after)

    async def end_former_attempts(self) -> None:
        """Make mongod abort the transactions of earlier attempts at this retryable write, except prepared ones.

        mongod aborts them when it receives any other statement with the transaction number. The router that began such
        an attempt may be gone. The retry would then wait for the document until the transaction's lifetime is over.
        """
        carried = {name.decode(): self.request.get(name) for name in (b"lsid", b"txnNumber")}
        statement = {"update": self.namespace.collection, "updates": [FINDING_NOTHING], "stmtIds": [_OF_NO_STATEMENT]}
        body = encode_document({**statement, **carried, "$db": self.namespace.db})
        await self.exchange(body, next_request_id())

    async def exchange(self, body: bytes, request_id: int) -> bytes:
        """Return mongod's reply frame to a command on the client's connection; BSONObjectTooLarge if too long."""
        check_size(len(body))
        frame = await self.upstream.forward(op_msg(body, request_id=request_id), 0)
        assert frame is not None
        return frame

    async def execute_as_previewed(
        self,
        query: bytes,
        modification: Mapping[str, Any],
        make: Callable[[Preview], Awaitable[Made]],
        is_overtaken: OvertakenTest[Made],
        *,
        is_multi: bool = False,
        supplied: bytes | None = None,
    ) -> Made:
        """Update or upsert one document, with a new preview whenever another writer was faster.

        Args:
            modification: the arguments of the ``findAndModify`` that has the same effect.
            is_multi: whether the update covers all matching documents.
            supplied: the document to insert if none matches, None if ``modification`` makes it.

        Returns:
            The result of the last ``make``.

        Raises:
            CommandError: the change is not allowed, or fails; WriteConflict, other writers keep changing the document.
        """
        change = KeyChange(self.table, self.shard, query, is_multi=is_multi, is_retryable=self.is_retryable)
        for attempts_left in range(_ATTEMPTS_MAX - 1, -1, -1):
            preview = await self.previews.preview(
                self.namespace,
                modification,
                seconds_max=seconds_allowed(self.request),
                end_former_attempts=self.end_former_attempts if self.is_retryable else None,
            )
            if preview.before is None and supplied is not None:
                preview = Preview(None, supplied)
            change.check(preview)
            made = await make(preview)
            if not is_overtaken(preview, made, is_last=not attempts_left):
                return made
        raise CommandError(
            ErrorCode.WriteConflict,
            f"other writers kept changing a document of {self.namespace} whose shard key was to be updated",
        )
