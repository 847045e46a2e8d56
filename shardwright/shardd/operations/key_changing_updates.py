"""Executing an ``update`` or ``findAndModify`` with statements that may change shard keys, under MongoDB's rules.

Each such statement is previewed (`UpdatePreviews`), checked (`KeyChange`), and executed as previewed
(`previewed_updates`). If another writer was faster, it is previewed again. The other statements of the request are
forwarded unchanged, and the replies merged.
"""

from collections.abc import Mapping
from math import inf
from typing import Any, Final

from shardwright.shardd.local_mongod.shard_key_index import find_cursor
from shardwright.shardd.operations.key_changes import KeyChange, may_change_shard_key, only_one_may_leave
from shardwright.shardd.operations.key_changing_request import CAUSED_BY, KeyChangingRequest
from shardwright.shardd.operations.previewed_updates import (
    FINDING_NOTHING,
    NOT_A_DOCUMENT,
    Preview,
    UpdateStatement,
    find_and_modify_of_nothing,
    is_find_and_modify_overtaken,
    is_update_overtaken,
    only_with_id,
    previewed_find_and_modify,
    previewed_statement,
    raw_update,
)
from shardwright.shardd.operations.update_transactions import (
    TransactionSteps,
    run_in_child_transaction,
    update_in_transaction,
)
from shardwright.sharding.transaction_protocol import CHANGED_OWNER, MAY_CHANGE_OWNER, changed_owner
from shardwright.sharding.versions import VERSION_FIELDS
from shardwright.wire.error_codes import Category, ErrorCode, has_category
from shardwright.wire.errors import TRANSIENT_TRANSACTION_ERROR, CommandError
from shardwright.wire.frames import next_request_id
from shardwright.wire.limits import BSON_OBJECT_BYTES_MAX
from shardwright.wire.message import op_msg, reply_document
from shardwright.wire.rawbson import (
    EMPTY_DOCUMENT,
    OBJECT,
    append,
    decode_document,
    decode_value,
    element,
    encode_elements,
    index,
    raw_document,
    without,
)
from shardwright.wire.request import Request
from shardwright.wire.transport.client import response_body

_TIMES: Final = ("$clusterTime", "operationTime")

_REMOVED: Final = VERSION_FIELDS | {MAY_CHANGE_OWNER}
_OF_FIND_AND_MODIFY: Final = frozenset({b"query", b"sort", b"upsert"})
_FINDING_FIELDS: Final = (b"sort", b"collation", b"hint", b"let")
_MODIFYING = (b"sort", b"upsert", b"collation", b"arrayFilters", b"hint", b"let", b"bypassDocumentValidation")


class MergedUpdateReply:
    """A reply merged from the replies to single statements."""

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
        """Add the error of the statement at a position."""
        self.errors.append({"index": position, "code": error.code, "errmsg": error.message, **error.extra})

    @property
    def has_times(self) -> bool:
        """Whether mongod has answered a statement, so that the reply has its ``operationTime``."""
        return "operationTime" in self._last

    def add_times(self, reply: dict[str, Any]) -> None:
        """Copy the times of another reply."""
        self._last |= {field: reply[field] for field in _TIMES if field in reply}

    def document(self) -> dict[str, Any]:
        """Return the reply in mongod's order of fields."""
        document: dict[str, Any] = {"n": self._n}
        if self.errors:
            document["writeErrors"] = self.errors
        if self._upserted:
            document["upserted"] = self._upserted
        if self._retried:
            document["retriedStmtIds"] = self._retried
        document["nModified"] = self._modified
        for field in ("writeConcernError", "electionId", "opTime", CHANGED_OWNER.decode()):
            if field in self._last:
                document[field] = self._last[field]
        document["ok"] = 1.0
        for field in _TIMES:
            if field in self._last:
                document[field] = self._last[field]
        return document


_STATEMENTS: Final = VERSION_FIELDS | {b"updates", b"stmtIds", b"stmtId", MAY_CHANGE_OWNER}
_OF_SERVER: Final = (Category.NOT_PRIMARY, Category.SHUTDOWN, Category.INTERRUPTION)
_IDS: Final = frozenset({b"stmtIds", b"stmtId"})
_OF_STATEMENT: Final = frozenset({b"q", b"upsert", b"upsertSupplied", b"multi"})
_FINDING: Final = ("collation", "hint", "let")


class _WholeCommandError(CommandError):
    """mongod refused the command as a whole, not just a statement."""


class KeyChangingUpdates:
    """The execution of the statements of one ``update``."""

    def __init__(self, changing: KeyChangingRequest) -> None:
        self._changing = changing
        self._request = changing.request
        self._may_be_repeated = False
        self._steps = TransactionSteps(changing) if changing.is_in_transaction else None
        self._has_own_ids = not self._request.fields.keys().isdisjoint(_IDS)

    async def run(self) -> bytes:
        """Execute the statements one after the other; return the reply frame, or raise the whole command's error."""
        self._may_be_repeated = self._steps is None and await self._changing.has_begun()
        statements = self._request.documents(b"updates")
        first_statement_id = int(self._request.get(b"stmtId", 0))
        statement_ids = self._request.get(b"stmtIds") or range(first_statement_id, first_statement_id + len(statements))
        is_ordered = bool(self._request.get(b"ordered", True))
        merged = MergedUpdateReply()
        for position, statement in enumerate(statements):
            try:
                reply = await self._update(UpdateStatement(statement), statement_ids[position])
            except CommandError as error:
                if isinstance(error, _WholeCommandError) or _concerns_all(error):
                    raise
                if error.code == ErrorCode.WouldChangeOwningShard and (self._steps is not None or len(statements) == 1):
                    raise  # the router continues instead
                error.message = error.message.removeprefix(CAUSED_BY)
                merged.add_error(position, error)
                if self._steps is not None:
                    await self._steps.abort()
            else:
                merged.add(position, reply)
            if merged.errors and (is_ordered or self._steps is not None):
                break
        if not merged.has_times:
            # All statements failed before they were sent. A causally consistent session still needs the times.
            merged.add_times(await self._changing.mongod.command("admin", {"ping": 1}))
        return reply_document(self._request.message.request_id, merged.document())

    async def _update(self, statement: UpdateStatement, statement_id: int) -> dict[str, Any]:
        """Execute one statement; return the reply to it alone. CommandError if refused or failed."""
        changing, raw = self._changing, statement.raw
        collated = changing.is_collated(raw, statement.fields)
        modification = statement.fields[b"u"]
        if not may_change_shard_key(statement.query, raw, modification, changing.pattern, is_collated=collated):
            return await self._forward(raw_document(raw), statement_id)
        remembered = await self._remembered(statement_id) if self._may_be_repeated else None
        if remembered is not None:
            return remembered
        if not statement.is_multi:
            return await self._update_first_once(statement, statement_id)
        if changing.is_retryable and self._steps is None:
            return await self._forward(raw_document(raw), statement_id)  # mongod refuses it
        return await self._update_many(statement)

    async def _remembered(self, statement_id: int) -> dict[str, Any] | None:
        """Return mongod's reply to a statement that it has executed already; otherwise None."""
        reply = await self._forward(FINDING_NOTHING, statement_id)
        return reply if "retriedStmtIds" in reply else None

    async def _update_first_once(self, statement: UpdateStatement, statement_id: int) -> dict[str, Any]:
        """Run `_update_first`, unless an earlier attempt at the same statement is executed in between.

        The preview has waited for that attempt and sees its result, which the statement may not apply to.
        """
        try:
            return await self._update_first(statement, statement.query, statement_id)
        except CommandError as error:
            is_of_statement = not isinstance(error, _WholeCommandError) and not _concerns_all(error)
            if not is_of_statement or self._steps is not None or not await self._changing.has_begun():
                raise
            remembered = await self._remembered(statement_id)
            if remembered is None:
                raise
            return remembered

    async def _update_first(
        self, statement: UpdateStatement, query: bytes, statement_id: int, *, is_multi: bool = False
    ) -> dict[str, Any]:
        """Update or upsert one document that matches ``query``."""
        if self._steps is not None:
            return await self._update_in_transaction(self._steps, statement, query, statement_id, is_multi=is_multi)
        collated = self._changing.is_collated(statement.raw, statement.fields)

        async def make(preview: Preview) -> dict[str, Any]:
            made = previewed_statement(statement.raw, query, preview, is_collated=collated)
            is_too_long = len(self._body(made, statement_id)) > BSON_OBJECT_BYTES_MAX

            async def execute(child: KeyChangingRequest) -> dict[str, Any]:
                updates = KeyChangingUpdates(child)
                if is_too_long:
                    return await updates._update_first(statement, query, statement_id, is_multi=is_multi)
                return await updates._forward(made, statement_id)

            if is_too_long or self._changing.inserts_under_other_key(query, preview):
                return _checked(await run_in_child_transaction(self._changing, statement_id, execute))
            return await self._forward(made, statement_id)

        modification = statement.modification(self._request) | {"query": raw_document(query)}
        execute = self._changing.execute_as_previewed
        return await execute(
            query, modification, make, is_update_overtaken, is_multi=is_multi, supplied=statement.supplied
        )

    async def _update_in_transaction(
        self, steps: TransactionSteps, statement: UpdateStatement, query: bytes, statement_id: int, *, is_multi: bool
    ) -> dict[str, Any]:
        changing, modification = self._changing, statement.modification(self._request)
        collated = changing.is_collated(statement.raw, statement.fields)

        async def execute(before: bytes | None) -> bytes:
            made = statement.raw
            if before is not None:
                narrowed = element(b"q", OBJECT, only_with_id(query, before, is_collated=collated))
                made = append(without(made, _OF_STATEMENT), narrowed)
            return await self._exchange(raw_document(made), statement_id)

        change = KeyChange(
            changing.table, changing.shard, query, is_multi=is_multi, is_retryable=changing.may_change_key
        )
        finding: dict[str, Any] = {name: modification[name] for name in _FINDING if name in modification}
        executed = await update_in_transaction(
            steps, change, finding, execute, may_leave=changing.may_change_owner and not is_multi
        )
        reply = _checked(decode_document(executed.reply))
        if executed.left is None:
            return reply
        if len(self._request.documents(b"updates")) > 1:
            raise only_one_may_leave()
        return {**reply, **changed_owner(executed.left)}

    async def _update_many(self, statement: UpdateStatement) -> dict[str, Any]:
        """Update the documents that match now, one after the other, or upsert one if none does."""
        changing = self._changing
        modification = statement.modification(self._request)
        find = {"filter": modification["query"], "projection": {"_id": 1}}
        find |= {name: modification[name] for name in _FINDING if name in modification}
        if self._steps is None:
            # Without a time limit, because only its own limits end a client's write.
            found = await find_cursor(changing.mongod, changing.namespace, find, reply_seconds_max=inf).all_documents()
        else:
            found = await self._steps.find_all(find)
        if not found:
            return await self._update_first(statement, statement.query, 0, is_multi=True)
        collated = changing.is_collated(statement.raw, statement.fields)
        of_one = UpdateStatement(without(statement.raw, {b"upsert", b"upsertSupplied"}))
        total: dict[str, Any] = {"n": 0, "nModified": 0}
        for identity in found:
            only = only_with_id(statement.query, identity, is_collated=collated)
            reply = await self._update_first(of_one, only, 0, is_multi=True)
            if reply.get("writeErrors"):
                return reply
            total = {**reply, "n": total["n"] + reply["n"], "nModified": total["nModified"] + reply["nModified"]}
        return total

    async def _forward(self, statement: Mapping[str, Any], statement_id: int) -> dict[str, Any]:
        """Execute one statement on mongod as part of the client's request; errors as `_checked`."""
        return _checked(decode_document(await self._exchange(statement, statement_id)))

    async def _exchange(self, statement: Mapping[str, Any], statement_id: int) -> bytes:
        exchange = self._changing.exchange if self._steps is None else self._steps.run
        return response_body(await exchange(self._body(statement, statement_id), next_request_id()))

    def _body(self, statement: Mapping[str, Any], statement_id: int) -> bytes:
        """Return the command that executes one statement as part of the client's request."""
        elements: dict[str, Any] = {"updates": [statement]}
        if self._has_own_ids or (self._changing.is_retryable and self._steps is None):
            elements["stmtIds"] = [statement_id]
        return append(without(self._request.body, _STATEMENTS), encode_elements(elements))


def _checked(reply: dict[str, Any]) -> dict[str, Any]:
    """Return the reply to one statement; raise _WholeCommandError if the command failed as a whole."""
    if not reply.get("ok"):
        raise _WholeCommandError.from_reply(reply)
    return reply


def _concerns_all(error: CommandError) -> bool:
    """Whether an error concerns the server or the transaction, and thus the other statements too."""
    return TRANSIENT_TRANSACTION_ERROR in error.labels or any(has_category(error.code, each) for each in _OF_SERVER)


async def key_changing_find_and_modify(changing: KeyChangingRequest) -> bytes:
    """Execute a ``findAndModify`` as previewed; return the reply frame. CommandError if refused or failed."""
    try:
        return await _execute(changing)
    except CommandError as error:
        if error.code == ErrorCode.WouldChangeOwningShard:
            error.message = CAUSED_BY + error.message
        raise


async def _execute(changing: KeyChangingRequest) -> bytes:
    request = changing.request
    body, request_id = without(request.body, _REMOVED), request.message.request_id
    if changing.is_in_transaction:
        return await _in_transaction(changing, body, request_id)
    remembered = await _remembered(changing, body)
    if remembered is not None:
        return remembered
    query = request.raw_object(b"query") or EMPTY_DOCUMENT
    collated = changing.is_collated(request.body, request.fields)

    async def make(preview: Preview) -> bytes:
        made = previewed_find_and_modify(body, query, preview, is_collated=collated)
        is_too_long = len(made) > BSON_OBJECT_BYTES_MAX

        async def execute(child: KeyChangingRequest) -> dict[str, Any]:
            of_child = without(child.request.body, _REMOVED)
            if is_too_long:
                frame = await _in_transaction(child, of_child, request_id)
            else:
                of_child = previewed_find_and_modify(of_child, query, preview, is_collated=collated)
                frame = await child.exchange(of_child, request_id)
            return decode_document(response_body(frame))

        if is_too_long or changing.inserts_under_other_key(query, preview):
            statement_id = int(request.get(b"stmtId", 0))
            return reply_document(request_id, await run_in_child_transaction(changing, statement_id, execute))
        return await changing.exchange(made, request_id)

    def is_overtaken(preview: Preview, frame: bytes, *, is_last: bool) -> bool:
        return is_find_and_modify_overtaken(preview, response_body(frame), is_last=is_last)

    try:
        return await changing.execute_as_previewed(query, _modification(request, query), make, is_overtaken)
    except CommandError:
        # The preview may have waited for an earlier attempt of the same request, and have seen its result.
        remembered = await _remembered(changing, body)
        if remembered is None:
            raise
        return remembered


async def _remembered(changing: KeyChangingRequest, body: bytes) -> bytes | None:
    """Return mongod's reply frame to a request that it has executed already, or refuses to execute; otherwise None."""
    if not await changing.has_begun():
        return None
    frame = await changing.exchange(find_and_modify_of_nothing(body), changing.request.message.request_id)
    reply = response_body(frame)
    fields = index(reply)
    is_refused = b"code" in fields and decode_value(reply, fields[b"code"]) != NOT_A_DOCUMENT
    return frame if is_refused or b"retriedStmtId" in fields else None


async def _in_transaction(changing: KeyChangingRequest, body: bytes, request_id: int) -> bytes:
    """Execute the request in a client's transaction; return the reply frame. CommandError if refused or failed."""
    request, steps = changing.request, TransactionSteps(changing)
    query = request.raw_object(b"query") or EMPTY_DOCUMENT
    collated = changing.is_collated(request.body, request.fields)

    async def execute(before: bytes | None) -> bytes:
        made = body
        if before is not None:
            narrowed = element(b"query", OBJECT, only_with_id(query, before, is_collated=collated))
            made = append(without(body, _OF_FIND_AND_MODIFY), narrowed)
        return response_body(await steps.run(made, request_id))

    change = KeyChange(changing.table, changing.shard, query, is_multi=False, is_retryable=changing.may_change_key)
    finding = {name.decode(): request.get(name) for name in _FINDING_FIELDS if name in request.fields}
    executed = await update_in_transaction(steps, change, finding, execute, may_leave=changing.may_change_owner)
    reply = executed.reply
    if executed.left is not None:
        reply = append(reply, encode_elements(changed_owner(executed.left)))
    return op_msg(reply, request_id=next_request_id(), response_to=request_id)


def _modification(request: Request, query: bytes) -> dict[str, Any]:
    """Return the arguments of the request that determine its effect."""
    modification = {"query": raw_document(query), "update": raw_update(request.body, request.fields[b"update"])}
    return modification | {name.decode(): request.get(name) for name in _MODIFYING if name in request.fields}
