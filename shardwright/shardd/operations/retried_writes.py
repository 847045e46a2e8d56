"""Retried writes of migrated sessions: statements executed on other shards are answered, the rest forwarded.

mongod has no record of statements that other shards executed. For their sessions, this module does the work of mongod's
session catalog. It refuses older transaction numbers, executes each statement of the newest one once, and forwards
newer ones. This includes writes that a router executes in a transaction, whose retry may come after the range has
moved.

Replies are built as mongod 6.0 builds them from its oplog. Like mongod, this checks only the kind of the executed
operation, and compares the request only as far as the reply requires. So an insert may answer an update, and a
projection is not applied to an image again.
"""

from base64 import b64encode
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final
from uuid import UUID

from bson.int64 import Int64

from shardwright.daemon.sidecar.mongod import LocalMongod
from shardwright.shardd.exchange.term_exchange import gossip
from shardwright.shardd.session_history.migrated_history import HistoryTable
from shardwright.shardd.session_history.statement import (
    DELETE,
    INCOMPLETE_HISTORY,
    INSERT,
    ChildTransaction,
    ExecutedStatement,
    SessionWrite,
    session_of,
)
from shardwright.sharding.transaction_protocol import AUTOCOMMIT, START_TRANSACTION, TXN_NUMBER
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.message import MORE_TO_COME, OpMsg, encode_sequence, op_msg, reply_document
from shardwright.wire.rawbson import (
    EMPTY_DOCUMENT,
    append,
    decode_document,
    encode_document,
    encode_elements,
    index,
    raw_document,
    without,
)
from shardwright.wire.request import Request
from shardwright.wire.transport.client import decode_reply

_UPDATE_OF_DELETE: Final = 40638
_NO_DELETE: Final = 40606
_NO_PRE_IMAGE: Final = 40607
_NO_UPSERT: Final = 40608
_ONLY_PRE_IMAGE: Final = 40611
_ONLY_POST_IMAGE: Final = 40612
"""mongod's error codes for retries that do not match the executed statement."""

_KEPT_FROM_REST: Final = ("electionId", "opTime", "writeConcernError")
_GOSSIPED: Final = ("$clusterTime", "operationTime")

STATEMENTS: Final = {"insert": b"documents", "update": b"updates", "delete": b"deletes"}
FIND_AND_MODIFY: Final = frozenset({"findAndModify", "findandmodify"})

_LSID: Final = b"lsid"
_OF_TRANSACTION: Final = (_LSID, TXN_NUMBER, AUTOCOMMIT, START_TRANSACTION, b"readConcern")


def batch_reply(
    command: str,
    ids: Sequence[int],
    executed: Mapping[int, ExecutedStatement],
    positions: Sequence[int],
    rest: Mapping[str, Any] | None,
    *,
    is_ordered: bool,
) -> dict[str, Any]:
    """Build the reply to an ``insert``, ``update`` or ``delete``.

    Args:
        executed: the statements that were executed elsewhere, by their position in the request.
        positions: the positions of the statements that were sent to the local mongod.
        rest: mongod's reply to these; None if there were none.
        is_ordered: whether the first error ends the batch, so that later statements do not count.

    Raises:
        CommandError: 40638, a delete was executed where the retry is an update; IncompleteTransactionHistory, the
            ``_id`` of an inserted document is not known.
    """
    rest = rest or {}
    errors = [{**each, "index": positions[each["index"]]} for each in rest.get("writeErrors", ())]
    if is_ordered and errors:
        executed = {position: each for position, each in executed.items() if position < errors[0]["index"]}
    retried = {each.statement_id for each in executed.values()}.union(rest.get("retriedStmtIds", ()))
    upserted = [{**each, "index": positions[each["index"]]} for each in rest.get("upserted", ())]
    modified = rest.get("nModified", 0)
    if command == "update":
        for position, statement in executed.items():
            if statement.op == DELETE:
                raise CommandError(
                    _UPDATE_OF_DELETE,
                    "update retry request is not compatible with previous write in the transaction of type: d",
                )
            if statement.op == INSERT:
                upserted.append({"index": position, "_id": _inserted_id(statement)})
            else:
                modified += 1
    reply: dict[str, Any] = {"n": rest.get("n", 0) + len(executed)}
    if errors:
        reply["writeErrors"] = errors
    reply |= {name: rest[name] for name in _KEPT_FROM_REST if name in rest}
    if retried:
        reply["retriedStmtIds"] = [each for each in ids if each in retried]
    if upserted:
        reply["upserted"] = sorted(upserted, key=lambda each: each["index"])
    if command == "update":
        reply["nModified"] = modified
    return {**reply, "ok": 1.0, **{name: rest[name] for name in _GOSSIPED if name in rest}}


def find_and_modify_reply(request: Mapping[str, Any], statement: ExecutedStatement) -> dict[str, Any]:
    """Build the reply to a ``findAndModify`` that was executed elsewhere.

    Raises:
        CommandError: 40606, 40607, 40608, 40611 or 40612, the retry does not match it, or its image is lost;
            IncompleteTransactionHistory, the inserted document or its ``_id`` is not known.
    """
    is_new = bool(request.get("new"))
    outcome: dict[str, Any] = {"n": 1}
    image = None if statement.image is None else raw_document(statement.image)
    if statement.op == DELETE:
        if not request.get("remove"):
            raise _incompatible(_NO_DELETE, statement)
        if image is None:
            raise CommandError(_NO_PRE_IMAGE, "No pre-image available for findAndModify retry request")
    elif statement.op == INSERT:
        if not request.get("upsert"):
            raise _incompatible(_NO_UPSERT, statement)
        if is_new and image is None:
            raise CommandError(
                ErrorCode.IncompleteTransactionHistory, "the document that a findAndModify inserted is not known"
            )
        outcome |= {"updatedExisting": False, "upserted": _inserted_id(statement)}
        image = image if is_new else None
    elif image is None:
        wanted, stored = ("after", "before") if is_new else ("before", "after")
        raise CommandError(
            _ONLY_PRE_IMAGE if is_new else _ONLY_POST_IMAGE,
            f"findAndModify retry request wants the document {wanted} update returned, but only {stored} update "
            f"document is stored",
        )
    else:
        outcome["updatedExisting"] = True
    return {"lastErrorObject": outcome, "value": image, "retriedStmtId": statement.statement_id, "ok": 1.0}


def _inserted_id(statement: ExecutedStatement) -> object:
    if statement.inserted_id is None:
        raise CommandError(ErrorCode.IncompleteTransactionHistory, "the _id of an inserted document is not known")
    return decode_document(statement.inserted_id)["_id"]


def _incompatible(code: int, statement: ExecutedStatement) -> CommandError:
    return CommandError(
        code,
        f"findAndModify retry request is not compatible with previous write in the transaction of type: {statement.op}",
    )


def write_of(request: Request) -> SessionWrite | None:
    """Return the retryable write of a request; None if it is not part of one.

    A transaction statement belongs to a write if it has a statement id and its session is the child of a write's
    session.
    """
    fields = request.fields
    number = request.get(TXN_NUMBER)
    if request.name not in STATEMENTS and request.name not in FIND_AND_MODIFY:
        return None
    if _LSID not in fields or not isinstance(number, Int64) or request.message.flags & MORE_TO_COME:
        return None
    if AUTOCOMMIT not in fields:
        session = session_of(request.body, fields[_LSID])
        return None if session is None else SessionWrite(session, number)
    child = ChildTransaction.read(request.body, fields[_LSID], number)
    return child.write if child is not None and _has_statement_id(request) else None


def statement_ids(request: Request, count: int) -> list[int] | None:
    """Return the id of each statement of a batch; None if the client's ids are inconsistent."""
    explicit, first = request.get(b"stmtIds"), request.get(b"stmtId")
    if explicit is None:
        return list(range(first or 0, (first or 0) + count)) if isinstance(first, int | None) else None
    if first is not None or not isinstance(explicit, list) or len(explicit) != count:
        return None
    return explicit if all(isinstance(each, int) for each in explicit) else None


def with_statements(request: Request, statements: list[bytes], ids: list[int], positions: list[int]) -> Request:
    """Return the request with only the statements at `positions`, which keep their ids."""
    field = STATEMENTS[request.name]
    body = append(
        without(request.body, {field, b"stmtId", b"stmtIds"}),
        encode_elements({"stmtIds": [ids[position] for position in positions]}),
    )
    sections = encode_sequence(field, [statements[position] for position in positions])
    return Request(OpMsg(op_msg(body, request_id=request.message.request_id, sections=sections)))


def beginning_of_transaction(request: Request) -> Request | None:
    """Return a request that begins the transaction of an unexecuted statement; None if it begins no transaction."""
    if START_TRANSACTION not in request.fields:
        return None
    body, fields = request.body, request.fields
    session = b"".join(body[fields[name][1] : fields[name][3]] for name in _OF_TRANSACTION if name in fields)
    find = {"find": request.collection, "filter": raw_document(EMPTY_DOCUMENT), "limit": 1, "singleBatch": True}
    command = append(encode_document({**find, "$db": request.db}), session)
    return Request(OpMsg(op_msg(command, request_id=request.message.request_id)))


def _has_statement_id(request: Request) -> bool:
    """Whether a statement has an id; negative ids stand for none."""
    ids = request.get(b"stmtIds", ())
    first = request.get(b"stmtId", -1)
    return any(isinstance(each, int) and each >= 0 for each in (*(ids if isinstance(ids, list) else ()), first))


Run = Callable[[Request], Awaitable[bytes | None]]


async def answer_retried_write(
    mongod: LocalMongod, table: HistoryTable, request: Request, write: SessionWrite, run: Run
) -> bytes | None:
    """Return the reply frame of a write that other shards have executed wholly or partly, None for other writes.

    Args:
        run: runs a replacement request and returns the reply frame.

    Raises:
        CommandError: IncompleteTransactionHistory, it is unknown whether a statement was executed; or the request does
            not match the executed statement.
    """
    if await _has_newer_write(mongod, write):
        return None
    executed = await table.lookup(write)
    if not executed:
        return None
    if request.name in FIND_AND_MODIFY:
        statement = executed.get(int(request.get(b"stmtId", 0)))
        if statement is not None:
            failed = await _begin_transaction(request, run)
            return failed or await _answer(mongod, request, find_and_modify_reply(request.document, statement))
        _check_complete(write, executed)
        return None
    statements = request.documents(STATEMENTS[request.name])
    ids = statement_ids(request, len(statements))
    if ids is None:
        return None  # malformed: mongod reports it
    known = {position: executed[each] for position, each in enumerate(ids) if each in executed}
    positions = [position for position in range(len(ids)) if position not in known]
    if positions:
        _check_complete(write, executed)
    if not known:
        return None
    rest: Mapping[str, Any] | None = None
    if positions:
        frame = await run(with_statements(request, statements, ids, positions))
        assert frame is not None
        rest = decode_reply(frame)
        if not rest.get("ok"):
            return frame
    elif (failed := await _begin_transaction(request, run)) is not None:
        return failed
    is_ordered = bool(request.get(b"ordered", True))
    return await _answer(mongod, request, batch_reply(request.name, ids, known, positions, rest, is_ordered=is_ordered))


def maybe_retried_write(table: HistoryTable, request: Request) -> SessionWrite | None:
    """Return the retryable write of a command, if it is the newest of its session that other shards have executed.

    Args:
        request: a command with a ``txnNumber``.

    Raises:
        CommandError: TransactionTooOld, the session has begun a newer write elsewhere.
    """
    write = write_of(request)
    newest = None if write is None else table.sessions.get(write.lsid)
    if write is None or newest is None or write.txn_number > newest or write.txn_number < 0:
        return None  # mongod refuses negative numbers
    if write.txn_number < newest:
        raise CommandError(
            ErrorCode.TransactionTooOld,
            f"Retryable write with txnNumber {write.txn_number} is prohibited on session {_session_text(write.lsid)} "
            f"because a newer retryable write with txnNumber {newest} has already started on this session.",
        )
    return write


async def _begin_transaction(request: Request, run: Run) -> bytes | None:
    """Begin the transaction of a statement that is answered without mongod; return the reply if that fails.

    Otherwise mongod would refuse the commit of an unknown transaction.
    """
    beginning = beginning_of_transaction(request)
    if beginning is None:
        return None
    frame = await run(beginning)
    assert frame is not None
    return None if decode_reply(frame).get("ok") else frame


async def _has_newer_write(mongod: LocalMongod, write: SessionWrite) -> bool:
    """Whether the local mongod has a newer write of the session, and so refuses this one itself."""
    newer = {"_id": raw_document(write.lsid), "txnNum": {"$gt": Int64(write.txn_number)}}
    find = {"find": "transactions", "filter": newer, "limit": 1, "singleBatch": True}
    reply = await mongod.command("config", find)
    return bool(reply["cursor"]["firstBatch"])


def _check_complete(write: SessionWrite, executed: Mapping[int, ExecutedStatement]) -> None:
    """Refuse to execute unknown statements if the history is incomplete (IncompleteTransactionHistory)."""
    if INCOMPLETE_HISTORY in executed:
        raise CommandError(
            ErrorCode.IncompleteTransactionHistory,
            f"Incomplete history detected for transaction {write.txn_number} on session {_session_text(write.lsid)}",
        )


async def _answer(mongod: LocalMongod, request: Request, reply: dict[str, Any]) -> bytes:
    if "$clusterTime" not in reply:
        reply |= await gossip(mongod)
    return reply_document(request.message.request_id, reply)


def _session_text(lsid: bytes) -> str:
    """Format a session as in mongod's messages."""
    fields = index(lsid)
    session: dict[str, Any] = decode_document(lsid)
    user = lsid[fields[b"uid"][3] - 32 : fields[b"uid"][3]]
    return f"{UUID(bytes=bytes(session['id']))} - {b64encode(user).decode()} -  - "
