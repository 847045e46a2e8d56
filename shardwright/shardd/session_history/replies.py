"""Replies to retried writes, as mongod 6.0 builds them from its oplog. Pure.

Like mongod, this checks only the kind of the executed operation, and compares the request only as far as the reply
requires. So an insert may answer an update, and a projection is not applied to an image again.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from shardwright.shardd.session_history.statement import DELETE, INSERT, ExecutedStatement
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.rawbson import decode_document, raw_document

_UPDATE_OF_DELETE: Final = 40638
_NO_DELETE: Final = 40606
_NO_PRE_IMAGE: Final = 40607
_NO_UPSERT: Final = 40608
_ONLY_PRE_IMAGE: Final = 40611
_ONLY_POST_IMAGE: Final = 40612
"""mongod's error codes for retries that do not match the executed statement."""

_KEPT_FROM_REST: Final = ("electionId", "opTime", "writeConcernError")
_GOSSIPED: Final = ("$clusterTime", "operationTime")


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
