"""Updates that may change shard keys, made so that only what MongoDB allows happens.

Each such update is tried out first (`UpdatePreviews`), judged (`KeyChange`), and then made as it was judged
(`previewed_updates`), or tried out again if another writer was faster. All others of the same request are passed on as
they came.
"""

from collections.abc import Mapping
from typing import Any, Final

from bson.int64 import Int64

from daemon.sidecar.mongod import LocalMongod
from daemon.sidecar.upstream import Upstream
from shardd.exact_documents import only_this_one
from shardd.key_changes import KeyChange
from shardd.merged_update_reply import MergedUpdateReply
from shardd.migration.history.pooled_cursor import all_documents
from shardd.migration.history.statement import session_of
from shardd.previewed_updates import (
    FINDING_NOTHING,
    previewed_find_and_modify,
    previewed_statement,
)
from shardd.shard_key_updates import is_collated, may_change_shard_key
from shardd.update_preview import CAUSED_BY, Preview, UpdatePreviews
from sharding.namespace import Namespace
from sharding.routing_table import RoutingTable
from sharding.shard_key import ShardKeyPattern
from sharding.versions import DATABASE_VERSION, SHARD_VERSION
from wire.error_codes import Category, ErrorCode, has_category
from wire.errors import CommandError
from wire.message import next_request_id, op_msg, reply_document
from wire.rawbson import (
    ARRAY,
    EMPTY_DOCUMENT,
    OBJECT,
    Span,
    append,
    array_documents,
    decode_value,
    encode_elements,
    index,
    raw_document,
    without,
)
from wire.request import Request
from wire.transport.client import decode_reply, response_body

_ATTEMPTS_MAX: Final = 100
"""How often an update may find that another writer was faster; each time, that writer has got on."""

_VERSIONS: Final = frozenset({SHARD_VERSION, DATABASE_VERSION})
_STATEMENTS: Final = _VERSIONS | {b"updates", b"stmtIds", b"stmtId"}


class _WholeCommandError(CommandError):
    """What mongod answered to a command, not to one of its items."""


class KeyChangingWrites:
    """Makes the updates of one request on one sharded collection.

    Args:
        previews: tries updates out.
        mongod: the shard's own.
        upstream: the client's connection to it.
        request: an ``update`` or a ``findAndModify``.
        namespace: its collection.
        table: where keys belong.
        pattern: the part of the shard key that can change.
        shard: id of this shard.
    """

    def __init__(
        self,
        previews: UpdatePreviews,
        mongod: LocalMongod,
        upstream: Upstream,
        request: Request,
        namespace: Namespace,
        table: RoutingTable,
        pattern: ShardKeyPattern,
        shard: str,
    ) -> None:
        self._previews = previews
        self._mongod = mongod
        self._upstream = upstream
        self._request = request
        self._namespace = namespace
        self._table = table
        self._pattern = pattern
        self._shard = shard
        self._is_retryable = b"txnNumber" in request.fields
        self._may_be_repeated = False

    async def update(self) -> bytes:
        """Make the updates of an ``update`` one after the other; the frame of the reply.

        Raises:
            CommandError: OperationNotSupportedInTransaction, or what mongod answers to the command as a whole.
        """
        self._refuse_in_transaction()
        self._may_be_repeated = await self._has_begun()
        statements = self._request.documents(b"updates")
        first_statement_id = int(self._request.get(b"stmtId", 0))
        statement_ids = self._request.get(b"stmtIds") or range(first_statement_id, first_statement_id + len(statements))
        is_ordered = bool(self._request.get(b"ordered", True))
        merged = MergedUpdateReply()
        for position, statement in enumerate(statements):
            try:
                reply = await self._update_one(statement, statement_ids[position])
            except CommandError as error:
                if isinstance(error, _WholeCommandError) or _concerns_all(error.code):
                    raise
                error.message = error.message.removeprefix(CAUSED_BY)
                merged.add_error(position, error)
            else:
                merged.add(position, reply)
            if is_ordered and merged.errors:
                break
        return reply_document(self._request.message.request_id, merged.document())

    async def find_and_modify(self) -> bytes:
        """Make a ``findAndModify``; the frame of the reply.

        Raises:
            CommandError: it is not allowed, or fails.
        """
        self._refuse_in_transaction()
        request = self._request
        body = without(request.body, _VERSIONS)
        if await self._has_begun():
            # It is all that its transaction number stands for, so mongod has executed it and does not do so again.
            return await self._exchange(body, request.message.request_id)
        query = request.raw_object(b"query") or EMPTY_DOCUMENT
        collated = self._is_collated(request.body, request.fields)
        modification = self._find_and_modify_modification(query)
        judge = KeyChange(self._table, self._shard, query, is_multi=False, is_retryable=self._is_retryable)
        for attempts_left in range(_ATTEMPTS_MAX - 1, -1, -1):
            preview = await self._previews.preview(self._namespace, modification)
            judge.check(preview)
            frame = await self._exchange(
                previewed_find_and_modify(body, query, preview, is_collated=collated),
                request.message.request_id,
            )
            if not _is_late_find_and_modify(preview, response_body(frame), is_last=not attempts_left):
                return frame
        raise _changed_too_often(self._namespace)

    async def _update_one(self, statement: bytes, statement_id: int) -> dict[str, Any]:
        """Make one update; the reply to it alone.

        Raises:
            CommandError: it is not allowed, or fails.
        """
        fields = index(statement)
        query, is_multi = _raw(statement, fields, b"q"), bool(_value(statement, fields, b"multi"))
        collated = self._is_collated(statement, fields)
        if not may_change_shard_key(query, statement, fields[b"u"], self._pattern, is_collated=collated):
            return await self._forward(raw_document(statement), statement_id)
        if self._may_be_repeated:
            reply = await self._forward(FINDING_NOTHING, statement_id)
            if "retriedStmtIds" in reply:
                return reply
        if not is_multi:
            return await self._update_first(statement, fields, query, statement_id)
        if self._is_retryable:
            return await self._forward(raw_document(statement), statement_id)  # mongod says that this cannot be
        return await self._update_many(statement, fields, query)

    async def _update_first(
        self, statement: bytes, fields: Mapping[bytes, Span], query: bytes, statement_id: int, *, is_multi: bool = False
    ) -> dict[str, Any]:
        """Update one document that matches, or upsert one."""
        judge = KeyChange(self._table, self._shard, query, is_multi=is_multi, is_retryable=self._is_retryable)
        modification, collated = self._modification(statement, fields, query), self._is_collated(statement, fields)
        for attempts_left in range(_ATTEMPTS_MAX - 1, -1, -1):
            preview = await self._previews.preview(self._namespace, modification)
            judge.check(preview)
            made = previewed_statement(statement, query, preview, is_collated=collated)
            reply = await self._forward(made, statement_id)
            if not _is_late_update(preview, reply, is_last=not attempts_left):
                return reply
        raise _changed_too_often(self._namespace)

    async def _update_many(self, statement: bytes, fields: Mapping[bytes, Span], query: bytes) -> dict[str, Any]:
        """Update the documents that match now, one after the other; or upsert one if there are none."""
        modification, collated = self._modification(statement, fields, query), self._is_collated(statement, fields)
        names = ("collation", "hint", "let")
        find = {"filter": modification["query"], "projection": {"_id": 1}}
        find |= {name: modification[name] for name in names if name in modification}
        found = await all_documents(self._mongod, self._namespace, find)
        if not found:
            return await self._update_first(statement, fields, query, 0, is_multi=True)
        of_one = without(statement, {b"upsert"})
        one_fields = index(of_one)
        total: dict[str, Any] = {"n": 0, "nModified": 0}
        for identity in found:
            only = only_this_one(query, identity, is_collated=collated)
            reply = await self._update_first(of_one, one_fields, only, 0, is_multi=True)
            if reply.get("writeErrors"):
                return reply
            total = {**reply, "n": total["n"] + reply["n"], "nModified": total["nModified"] + reply["nModified"]}
        return total

    def _modification(self, statement: bytes, fields: Mapping[bytes, Span], query: bytes) -> dict[str, Any]:
        """The arguments of the ``findAndModify`` that does what an update does."""
        modification: dict[str, Any] = {"query": raw_document(query), "update": _raw_update(statement, fields[b"u"])}
        for name in (b"upsert", b"collation", b"arrayFilters", b"hint"):
            if name in fields:
                modification[name.decode()] = _value(statement, fields, name)
        if b"bypassDocumentValidation" in self._request.fields:
            modification["bypassDocumentValidation"] = self._request.get(b"bypassDocumentValidation")
        variables = {**(self._request.get(b"let") or {})}
        for name, value in (_value(statement, fields, b"c") or {}).items():
            variables[name] = {"$literal": value}
        if variables:
            modification["let"] = variables
        return modification

    def _find_and_modify_modification(self, query: bytes) -> dict[str, Any]:
        """The arguments of the request that say what it changes."""
        request = self._request
        names = (b"sort", b"upsert", b"collation", b"arrayFilters", b"hint", b"let", b"bypassDocumentValidation")
        modification = {"query": raw_document(query), "update": _raw_update(request.body, request.fields[b"update"])}
        return modification | {name.decode(): request.get(name) for name in names if name in request.fields}

    async def _forward(self, statement: Mapping[str, Any], statement_id: int) -> dict[str, Any]:
        """Have mongod make one update as part of the client's request.

        Raises:
            _WholeCommandError: not the update failed, but the command.
        """
        elements: dict[str, Any] = {"updates": [statement]}
        if self._is_retryable:
            elements["stmtIds"] = [statement_id]
        body = append(without(self._request.body, _STATEMENTS), encode_elements(elements))
        reply = decode_reply(await self._exchange(body, next_request_id()))
        if not reply.get("ok"):
            raise _WholeCommandError.from_reply(reply)
        return reply

    async def _exchange(self, body: bytes, request_id: int) -> bytes:
        frame = await self._upstream.forward(op_msg(body, request_id=request_id), 0)
        assert frame is not None
        return frame

    async def _has_begun(self) -> bool:
        """Whether mongod has executed a part of the request before, which its client has sent again."""
        request = self._request
        lsid = request.fields.get(b"lsid")
        session = None if lsid is None or not self._is_retryable else session_of(request.body, lsid)
        if session is None:
            return False
        begun = {"_id": raw_document(session), "txnNum": Int64(request.get(b"txnNumber"))}
        reply = await self._mongod.command("config", {"find": "transactions", "filter": begun, "limit": 1})
        return bool(reply["cursor"]["firstBatch"])

    def _is_collated(self, document: bytes, fields: Mapping[bytes, Span]) -> bool:
        return is_collated(document, fields.get(b"collation"), self._table.collection.default_collation)

    def _refuse_in_transaction(self) -> None:
        if b"autocommit" in self._request.fields:
            raise CommandError(
                ErrorCode.OperationNotSupportedInTransaction,
                "changing a shard key in a transaction is not supported",
                labels=("TransientTransactionError",),
            )


def _is_late_update(preview: Preview, reply: Mapping[str, Any], *, is_last: bool) -> bool:
    """Whether another writer was faster, so that the update has to be tried out again.

    A DuplicateKey may also be for good: then the preview fails with it, or, at the last attempt, it is the answer.
    """
    errors = reply.get("writeErrors", ())
    if preview.before is not None:
        return not errors and not reply.get("n")
    is_duplicate = any(error["code"] == ErrorCode.DuplicateKey for error in errors)
    return preview.after is not None and is_duplicate and not is_last


def _is_late_find_and_modify(preview: Preview, reply: bytes, *, is_last: bool) -> bool:
    """As `_is_late_update`."""
    fields = index(reply)
    if not decode_value(reply, fields[b"ok"]):
        is_duplicate = b"code" in fields and decode_value(reply, fields[b"code"]) == ErrorCode.DuplicateKey
        return preview.before is None and preview.after is not None and is_duplicate and not is_last
    outcome = decode_value(reply, fields[b"lastErrorObject"])
    return preview.before is not None and not outcome.get("n")


def _raw(document: bytes, fields: Mapping[bytes, Span], name: bytes) -> bytes:
    """The sub-document in a required field.

    Raises:
        CommandError: 40414 or TypeMismatch.
    """
    span = fields.get(name)
    if span is None:
        raise CommandError(40414, f"BSON field 'update.updates.{name.decode()}' is missing but a required field")
    if span[0] != OBJECT:
        raise CommandError(
            ErrorCode.TypeMismatch, f"BSON field 'update.updates.{name.decode()}' is the wrong type, expected 'object'"
        )
    return document[span[2] : span[3]]


def _value(document: bytes, fields: Mapping[bytes, Span], name: bytes) -> Any:  # noqa: ANN401 - a BSON value
    span = fields.get(name)
    return None if span is None else decode_value(document, span)


def _raw_update(document: bytes, span: Span) -> Any:  # noqa: ANN401 - a document or a list of them
    """Operators or a replacement as they are, a pipeline as the list of its stages."""
    if span[0] == ARRAY:
        return [raw_document(stage) for stage in array_documents(document, span)]
    return raw_document(document[span[2] : span[3]])


def _concerns_all(code: int) -> bool:
    """Whether an error is about the state of the server, so that the other updates would meet it too."""
    return any(has_category(code, each) for each in (Category.NOT_PRIMARY, Category.SHUTDOWN, Category.INTERRUPTION))


def _changed_too_often(namespace: Namespace) -> CommandError:
    return CommandError(
        ErrorCode.WriteConflict, f"a document of {namespace} kept changing while its shard key was to be changed"
    )
