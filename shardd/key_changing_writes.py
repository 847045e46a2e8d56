"""Updates that may change shard keys, made so that only what MongoDB allows happens.

Each such update is tried out first (`UpdatePreviews`), judged (`KeyChange`), and then made under the condition that its
document is still the one that was judged. All others of the same request are passed on as they came.
"""

from collections.abc import Mapping
from typing import Any, Final

import bson

from daemon.sidecar.upstream import Upstream
from shardd.key_changes import KeyChange
from shardd.shard_key_updates import may_change_shard_key
from shardd.update_preview import Preview, UpdatePreviews, only_as_it_was
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
from wire.transport.client import decode_reply

_ATTEMPTS_MAX: Final = 10
_NOT_PASSED_ON: Final = frozenset({SHARD_VERSION, DATABASE_VERSION, b"updates", b"stmtIds", b"stmtId"})
_NOTHING: Final = bson.encode({"$alwaysFalse": 1})


class _WholeCommandError(CommandError):
    """What mongod answered to a command, not to one of its items."""


class KeyChangingWrites:
    """Makes the updates of one request on one sharded collection.

    Args:
        previews: tries updates out.
        upstream: the client's connection to the mongod.
        request: an ``update`` or a ``findAndModify``.
        namespace: its collection.
        table: where keys belong.
        pattern: the part of the shard key that can change.
        shard: id of this shard.
    """

    def __init__(
        self,
        previews: UpdatePreviews,
        upstream: Upstream,
        request: Request,
        namespace: Namespace,
        table: RoutingTable,
        pattern: ShardKeyPattern,
        shard: str,
    ) -> None:
        self._previews = previews
        self._upstream = upstream
        self._request = request
        self._namespace = namespace
        self._table = table
        self._pattern = pattern
        self._shard = shard
        self._is_retryable = b"txnNumber" in request.fields

    async def update(self) -> bytes:
        """Make the updates of an ``update`` one after the other; the frame of the reply.

        Raises:
            CommandError: OperationNotSupportedInTransaction, or what mongod answers to the command as a whole.
        """
        self._refuse_in_transaction()
        statements = self._request.documents(b"updates")
        first_statement_id = int(self._request.get(b"stmtId", 0))
        statement_ids = self._request.get(b"stmtIds") or range(first_statement_id, first_statement_id + len(statements))
        is_ordered = bool(self._request.get(b"ordered", True))
        merged = _MergedReply()
        for position, statement in enumerate(statements):
            try:
                reply = await self._update_one(statement, statement_ids[position])
            except CommandError as error:
                if isinstance(error, _WholeCommandError) or _concerns_all(error.code):
                    raise
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
        query = request.raw_object(b"query") or EMPTY_DOCUMENT
        names = (b"sort", b"upsert", b"collation", b"arrayFilters", b"hint", b"let", b"bypassDocumentValidation")
        modification = {"query": raw_document(query), "update": _raw_update(request.body, request.fields[b"update"])}
        modification |= {name.decode(): request.get(name) for name in names if name in request.fields}
        judge = KeyChange(self._table, self._shard, query, is_multi=False, is_retryable=self._is_retryable)
        for _ in range(_ATTEMPTS_MAX):
            preview = await self._previews.preview(self._namespace, modification)
            judge.check(preview)
            narrowed: Mapping[str, Any]
            if preview.before is None:
                narrowed = raw_document(query if preview.after is not None else _NOTHING)
            else:
                narrowed = only_as_it_was(query, preview.before)
            body = without(request.body, {*_NOT_PASSED_ON, b"query"})
            body = append(body, encode_elements({"query": narrowed}))
            frame = await self._upstream.forward(op_msg(body, request_id=request.message.request_id), 0)
            assert frame is not None
            reply = decode_reply(frame)
            found = reply.get("lastErrorObject", {}).get("n", 0)
            if not reply.get("ok") or preview.before is None or found:
                return frame
        raise _changed_too_often(self._namespace)

    async def _update_one(self, statement: bytes, statement_id: int) -> dict[str, Any]:
        """Make one update; the reply to it alone.

        Raises:
            CommandError: it is not allowed, or fails.
        """
        fields = index(statement)
        query, is_multi = _raw(statement, fields, b"q"), bool(_value(statement, fields, b"multi"))
        if not may_change_shard_key(query, statement, fields[b"u"], self._pattern):
            return await self._forward(raw_document(statement), statement_id)
        judge = KeyChange(self._table, self._shard, query, is_multi=is_multi, is_retryable=self._is_retryable)
        if is_multi:
            if await self._matches_any(query, _value(statement, fields, b"collation")):
                judge.check_changed_unseen()
            return await self._forward(raw_document(statement), statement_id)
        for _ in range(_ATTEMPTS_MAX):
            preview = await self._previews.preview(self._namespace, self._modification(statement, fields))
            judge.check(preview)
            reply = await self._forward(_narrowed(statement, fields, query, preview), statement_id)
            if preview.before is None or reply.get("n") or reply.get("writeErrors"):
                return reply
        raise _changed_too_often(self._namespace)

    def _modification(self, statement: bytes, fields: Mapping[bytes, Span]) -> dict[str, Any]:
        """The arguments of the ``findAndModify`` that does what an update does."""
        modification: dict[str, Any] = {
            "query": raw_document(_raw(statement, fields, b"q")),
            "update": _raw_update(statement, fields[b"u"]),
        }
        for name in (b"upsert", b"collation", b"arrayFilters", b"hint"):
            if name in fields:
                modification[name.decode()] = _value(statement, fields, name)
        variables = {**(self._request.get(b"let") or {})}
        for name, value in (_value(statement, fields, b"c") or {}).items():
            variables[name] = {"$literal": value}
        if variables:
            modification["let"] = variables
        return modification

    async def _forward(self, statement: Mapping[str, Any], statement_id: int) -> dict[str, Any]:
        """Have mongod make one update as part of the client's request.

        Raises:
            _WholeCommandError: not the update failed, but the command.
        """
        elements: dict[str, Any] = {"updates": [statement]}
        if self._is_retryable:
            elements["stmtIds"] = [statement_id]
        body = append(without(self._request.body, _NOT_PASSED_ON), encode_elements(elements))
        frame = await self._upstream.forward(op_msg(body, request_id=next_request_id()), 0)
        assert frame is not None
        reply = decode_reply(frame)
        if not reply.get("ok"):
            raise _WholeCommandError.from_reply(reply)
        return reply

    async def _matches_any(self, query: bytes, collation: Mapping[str, Any] | None) -> bool:
        find: dict[str, Any] = {
            "find": self._namespace.collection,
            "filter": raw_document(query),
            "limit": 1,
            "singleBatch": True,
            "projection": {"_id": 1},
        }
        if collation is not None:
            find["collation"] = collation
        variables = self._request.get(b"let")
        if variables is not None:
            find["let"] = variables
        reply = await self._upstream.command(self._namespace.db, find)
        return bool(reply["cursor"]["firstBatch"])

    def _refuse_in_transaction(self) -> None:
        if b"autocommit" in self._request.fields:
            raise CommandError(
                ErrorCode.OperationNotSupportedInTransaction,
                "changing a shard key in a transaction is not supported",
                labels=("TransientTransactionError",),
            )


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


def _narrowed(statement: bytes, fields: Mapping[bytes, Span], query: bytes, preview: Preview) -> Mapping[str, Any]:
    """The statement that does to the previewed document, if it is unchanged, just what the preview showed."""
    if preview.before is not None:
        narrowed = encode_elements({"q": only_as_it_was(query, preview.before)})
        return raw_document(append(without(statement, {b"q", b"upsert"}), narrowed))
    if preview.after is not None:
        after = bson.decode(preview.after)
        return {"q": {"_id": {"$eq": after["_id"]}}, "u": raw_document(preview.after), "upsert": True}
    return raw_document(append(without(statement, {b"q", b"upsert"}), encode_elements({"q": raw_document(_NOTHING)})))


def _concerns_all(code: int) -> bool:
    """Whether an error is about the state of the server, so that the other updates would meet it too."""
    return any(has_category(code, each) for each in (Category.NOT_PRIMARY, Category.SHUTDOWN, Category.INTERRUPTION))


def _changed_too_often(namespace: Namespace) -> CommandError:
    return CommandError(
        ErrorCode.WriteConflict, f"a document of {namespace} kept changing while its shard key was to be changed"
    )


class _MergedReply:
    """The reply to an ``update`` whose statements were made one by one."""

    def __init__(self) -> None:
        self.errors: list[dict[str, Any]] = []
        self._n = 0
        self._modified = 0
        self._upserted: list[dict[str, Any]] = []
        self._retried: list[int] = []
        self._last: dict[str, Any] = {}

    def add(self, position: int, reply: dict[str, Any]) -> None:
        """Add the reply to the statement at a position."""
        self._n += reply.get("n", 0)
        self._modified += reply.get("nModified", 0)
        self._upserted += [{**each, "index": position} for each in reply.get("upserted", ())]
        self._retried += reply.get("retriedStmtIds", ())
        self.errors += [{**each, "index": position} for each in reply.get("writeErrors", ())]
        self._last = reply

    def add_error(self, position: int, error: CommandError) -> None:
        """The statement at a position was not allowed, or failed."""
        self.errors.append({"index": position, "code": error.code, "errmsg": error.message, **error.extra})

    def document(self) -> dict[str, Any]:
        """The reply in mongod's order of fields."""
        document: dict[str, Any] = {"n": self._n}
        if self.errors:
            document["writeErrors"] = self.errors
        if self._upserted:
            document["upserted"] = self._upserted
        document["nModified"] = self._modified
        if self._retried:
            document["retriedStmtIds"] = self._retried
        for field in ("writeConcernError", "electionId", "opTime"):
            if field in self._last:
                document[field] = self._last[field]
        document["ok"] = 1.0
        for field in ("$clusterTime", "operationTime"):
            if field in self._last:
                document[field] = self._last[field]
        return document
