"""``currentOp`` and ``$currentOp``: the pipeline that runs on mongod, and a daemon's own operations in its output.

A pipeline that begins with ``$currentOp`` runs on mongod. The daemon's operations, such as migrations, have ids that
mongod does not use. A ``$unionWith`` adds them after that stage, so that the rest of the pipeline filters and projects
them like all others. All of them must fit into that command, so large parts are truncated, as by a mongod with
``truncateOps``.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from itertools import count
from typing import Any, Final

from bson.json_util import dumps

from shardwright.daemon.users import UserName
from shardwright.wire.message import CHECKSUM_PRESENT, op_msg
from shardwright.wire.rawbson import decode_document, encode_document, index, is_string
from shardwright.wire.request import Request, with_stages

_GENERIC: Final = frozenset({"lsid", "maxTimeMS", "comment", "apiVersion", "apiStrict", "apiDeprecationErrors"})

_ON_ANY_MEMBER: Final = {"mode": "nearest"}
"""Secondaries show their operations too."""

_ADMIN = "admin"

_COMMAND_BYTES_MAX: Final = 1_000
"""The largest command that is shown; others are truncated, as by a mongod."""

_OPID_FIRST: Final = 2_000_000_000
"""First id. mongod counts from 1, so its ids do not reach this."""

_opids = count(_OPID_FIRST)


def find_operations(arguments: Mapping[str, Any], added: Sequence[Mapping[str, Any]] = ()) -> dict[str, Any]:
    """Return an ``aggregate`` on ``admin`` that finds the operations requested by a ``currentOp``.

    They are returned in one document, so that all of them are in the first batch. More than 16 MB of them are an error,
    as in MongoDB.

    Args:
        arguments: the whole command. Its fields are conditions, except those common to all commands.
        added: stages that add further operations before these conditions.
    """
    stage = {
        "allUsers": not arguments.get("$ownOps"),
        "idleConnections": bool(arguments.get("$all")),
        "truncateOps": True,
    }
    conditions = {
        name: value
        for position, (name, value) in enumerate(arguments.items())
        if position and not name.startswith("$") and name not in _GENERIC
    }
    together = {"_id": None, "inprog": {"$push": "$$ROOT"}}
    pipeline = [{"$currentOp": stage}, *added, {"$match": conditions}, {"$group": together}]
    return {"aggregate": 1, "pipeline": pipeline, "cursor": {}, "$readPreference": _ON_ANY_MEMBER}


def found_operations(reply: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the operations in the reply to `find_operations`."""
    return [operation for group in reply["cursor"]["firstBatch"] for operation in group["inprog"]]


def union_with(operations: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the stage that adds operations to its input; nothing in them is evaluated as an expression."""
    return {"$unionWith": {"pipeline": [{"$documents": [{"$literal": _shown(operation)} for operation in operations]}]}}


def _shown(operation: Mapping[str, Any]) -> dict[str, Any]:
    """Return an operation with its command truncated if it is large."""
    command = operation.get("command")
    if not isinstance(command, Mapping) or len(encode_document(command)) <= _COMMAND_BYTES_MAX:
        return dict(operation)
    beginning = {name: _beginning(value) for name, value in command.items()}
    return {**operation, "command": {"$truncated": dumps(beginning)[:_COMMAND_BYTES_MAX]}}


def _beginning(value: object) -> object:
    """Cut a value to its shown part, because formatting megabytes takes long."""
    return value[:_COMMAND_BYTES_MAX] if is_string(value) or isinstance(value, bytes | list) else value


def asks_for_users_own(request: Request, user: UserName | None) -> bool:
    """Whether a ``currentOp`` asks for the sender's operations, which only the mongod can identify.

    Args:
        user: the authenticated user; None without access control, where it shows everything.
    """
    return user is not None and not user.is_internal and bool(request.get(b"$ownOps"))


def with_daemon_operations(
    request: Request,
    own: Callable[[], Sequence[dict[str, Any]]],
    user: UserName | None,
    shown_as: Sequence[dict[str, Any]] = (),
) -> bytes:
    """Return the frame to forward for a request: its own, or one that adds the daemon's operations to ``$currentOp``.

    These belong to no user, so under access control they are shown only in the operations of all users.

    Args:
        own: returns the daemon's operations that are invisible to mongod, such as migrations.
        user: the authenticated user; None without access control.
        shown_as: stages that change the form of all operations.
    """
    frame = request.message.frame
    if request.name != "aggregate" or request.db != _ADMIN or b"pipeline" not in request.fields:
        return frame
    operations = own()
    if not operations and not shown_as:
        return frame
    pipeline = request.documents(b"pipeline")
    if not pipeline or next(iter(index(pipeline[0])), b"") != b"$currentOp":
        return frame
    if user is not None and not _is_about_all_users(pipeline[0]):
        operations = ()
    added = [*([union_with(operations)] if operations else []), *shown_as]
    if not added:
        return frame
    stages = [pipeline[0], *map(encode_document, added), *pipeline[1:]]
    body = with_stages(request.body, stages)
    message = request.message
    return op_msg(body, request_id=message.request_id, flags=message.flags & ~CHECKSUM_PRESENT)


def _is_about_all_users(stage: bytes) -> bool:
    specification = decode_document(stage)["$currentOp"]
    return isinstance(specification, Mapping) and specification.get("allUsers") is True


def new_opid() -> int:
    """Return an unused id for ``currentOp`` and ``killOp``."""
    return next(_opids)


def operation_entry(
    desc: str, address: str, opid: int, began: datetime, details: Mapping[str, Any], *, waits: bool = False
) -> dict[str, Any]:
    """Return an operation in mongod's format.

    Args:
        desc: MongoDB's name for the thread that runs it.
        address: ``host:port`` of this daemon.
        opid: the number that ``killOp`` accepts.
        details: its ``ns``, ``command`` and ``msg``, and its progress.
        waits: whether it is waiting for admission.
    """
    now = datetime.now(UTC)
    running = (now - began).total_seconds()
    return {
        "type": "op",
        "host": address,
        "desc": desc,
        "active": True,
        "currentOpTime": now.isoformat(timespec="milliseconds"),
        "opid": opid,
        "secs_running": int(running),
        "microsecs_running": int(running * 1_000_000),
        "op": "command",
        **details,
        "numYields": 0,
        "waitingForLock": waits,
    }
