"""The daemon's own operations in the output of ``$currentOp``.

A pipeline that begins with ``$currentOp`` runs on mongod. The daemon's operations are added after that stage by a
``$unionWith``, so that the rest of the pipeline filters and projects them like all others. All of them must fit into
that command, so large parts are truncated, as by a mongod with ``truncateOps``.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from bson.json_util import dumps

from shardwright.daemon.user_names import UserName
from shardwright.wire.message import CHECKSUM_PRESENT, op_msg
from shardwright.wire.pipelines import with_stages
from shardwright.wire.rawbson import decode_document, encode_document, index, is_string
from shardwright.wire.request import Request

_ADMIN = "admin"

_COMMAND_BYTES_MAX: Final = 1_000
"""The largest command that is shown; others are truncated, as by a mongod."""


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
