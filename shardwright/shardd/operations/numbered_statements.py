"""The retryable write that a request executes, whether directly or in a transaction on its behalf. Pure."""

from typing import Final

from bson.int64 import Int64

from shardwright.shardd.session_history.child_sessions import ChildTransaction
from shardwright.shardd.session_history.statement import SessionWrite, session_of
from shardwright.sharding.operation_session import AUTOCOMMIT, START_TRANSACTION, TXN_NUMBER
from shardwright.wire.message import MORE_TO_COME, OpMsg, op_msg
from shardwright.wire.rawbson import EMPTY_DOCUMENT, append, encode_document, encode_elements, raw_document, without
from shardwright.wire.request import Request
from shardwright.wire.sections import encode_sequence

STATEMENTS: Final = {"insert": b"documents", "update": b"updates", "delete": b"deletes"}
FIND_AND_MODIFY: Final = frozenset({"findAndModify", "findandmodify"})

_LSID: Final = b"lsid"
_OF_TRANSACTION: Final = (_LSID, TXN_NUMBER, AUTOCOMMIT, START_TRANSACTION, b"readConcern")


def write_of(request: Request) -> SessionWrite | None:
    """The retryable write, None if the request is no part of one.

    A statement of a transaction is part of one if it has an id, and the transaction's session derives from a write.
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
    """The id of each statement; None if the client's ids are inconsistent.

    Args:
        request: an ``insert``, ``update`` or ``delete``.
        count: how many statements it has.
    """
    explicit, first = request.get(b"stmtIds"), request.get(b"stmtId")
    if explicit is None:
        return list(range(first or 0, (first or 0) + count)) if isinstance(first, int | None) else None
    if first is not None or not isinstance(explicit, list) or len(explicit) != count:
        return None
    return explicit if all(isinstance(each, int) for each in explicit) else None


def with_statements(request: Request, statements: list[bytes], ids: list[int], positions: list[int]) -> Request:
    """The request with only the statements at some positions, which keep their ids."""
    field = STATEMENTS[request.name]
    body = append(
        without(request.body, {field, b"stmtId", b"stmtIds"}),
        encode_elements({"stmtIds": [ids[position] for position in positions]}),
    )
    sections = encode_sequence(field, [statements[position] for position in positions])
    return Request(OpMsg(op_msg(body, request_id=request.message.request_id, sections=sections)))


def beginning_of_transaction(request: Request) -> Request | None:
    """What begins the transaction of a statement that is not executed; None if none has to begin."""
    if START_TRANSACTION not in request.fields:
        return None
    body, fields = request.body, request.fields
    session = b"".join(body[fields[name][1] : fields[name][3]] for name in _OF_TRANSACTION if name in fields)
    find = {"find": request.collection, "filter": raw_document(EMPTY_DOCUMENT), "limit": 1, "singleBatch": True}
    command = append(encode_document({**find, "$db": request.db}), session)
    return Request(OpMsg(op_msg(command, request_id=request.message.request_id)))


def _has_statement_id(request: Request) -> bool:
    """Whether a statement has an id: negative ones stand for none."""
    ids = request.get(b"stmtIds", ())
    first = request.get(b"stmtId", -1)
    return any(isinstance(each, int) and each >= 0 for each in (*(ids if isinstance(ids, list) else ()), first))
