"""``killCursors``: kills cursors that their client no longer needs."""

from collections.abc import Sequence
from typing import Final

import bson

from shardwright.daemon.privileges import CLUSTER, NO_PRIVILEGES, Resource
from shardwright.router.access.access_control import AccessControl, not_authorized
from shardwright.router.access.needs import Need
from shardwright.router.commands.command_registry import command
from shardwright.router.cursors.session import CursorOwner
from shardwright.router.operations.operation import Operation
from shardwright.router.processes.siblings import on_behalf_of, user_of_sibling
from shardwright.router.processes.workers import holder_socket
from shardwright.router.replies.own_reply import Reply
from shardwright.sharding.namespace import Namespace
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import BackendError, CommandError
from shardwright.wire.field_errors import missing_field, wrong_type
from shardwright.wire.rawbson import ARRAY, INT64, decode_value, spans
from shardwright.wire.request import Request

_STRUCT: Final = "killCursors"


@command("killCursors", api_versions=("1",), arguments=("cursors",))
async def kill_cursors(operation: Operation) -> Reply:
    """Kills cursors by their ids."""
    context, db = operation.context, operation.request.db
    cursor_ids = _cursor_ids(operation.request)
    if context.access is not None:
        await _check_owners(operation, context.access, cursor_ids)
    killed: set[int] = set()
    elsewhere: dict[str, list[bson.Int64]] = {}
    for cursor_id in cursor_ids:
        socket = holder_socket(context.options, cursor_id)
        if socket is not None:
            elsewhere.setdefault(socket, []).append(bson.Int64(cursor_id))
        elif context.cursors.kill(cursor_id, db):
            killed.add(cursor_id)
    for socket, held in elsewhere.items():
        killed.update(await _killed_by_sibling(operation, socket, held))
    ended: list[bson.Int64] = []
    not_found: list[bson.Int64] = []
    for cursor_id in cursor_ids:
        (ended if cursor_id in killed else not_found).append(bson.Int64(cursor_id))
        killed.discard(cursor_id)  # an id that is given twice is killed once
    return {"cursorsKilled": ended, "cursorsNotFound": not_found, "cursorsAlive": [], "cursorsUnknown": []}


async def _check_owners(operation: Operation, access: AccessControl, cursor_ids: Sequence[int]) -> None:
    """Refuse to kill cursors of others without the privilege to kill any: one of them is enough to refuse all.

    Raises:
        CommandError: Unauthorized.
    """
    request = operation.request
    sibling_user = user_of_sibling(request)
    user = CursorOwner.of(request, operation.user).user if sibling_user is None else sibling_user.digest
    found = (operation.context.cursors.find(cursor_id) for cursor_id in cursor_ids)
    if all(entry is None or entry.owner.user in (user, b"") for entry in found):
        return
    privileges = access.privileges_of(operation.client)
    if sibling_user is not None:
        authorized = await access.users.find(sibling_user)
        privileges = NO_PRIVILEGES if authorized is None else authorized.privileges
    places = (CLUSTER, Resource(request.db, request.collection))
    if not any(Need("killAnyCursor", place).is_met(privileges) for place in places):
        raise not_authorized(request)


async def _killed_by_sibling(operation: Operation, socket: str, cursor_ids: list[bson.Int64]) -> list[int]:
    """The cursors that were killed by the worker of this router that held them."""
    killing = {"killCursors": operation.argument(operation.request.name.encode()), "cursors": cursor_ids}
    user = operation.acting_user
    if user is not None:
        killing |= on_behalf_of(user)
    try:
        reply = await operation.context.pools[socket].command(operation.request.db, killing)
    except BackendError:  # the worker has crashed, and its cursors with it
        return []
    except CommandError as error:
        # The sibling shows what it was sent.
        raise not_authorized(operation.request) if error.code == ErrorCode.Unauthorized else error from error
    ended: list[int] = reply["cursorsKilled"]
    return ended


def _cursor_ids(request: Request) -> list[int]:
    """The ids to kill.

    Raises:
        CommandError: InvalidNamespace or BadValue for the collection's name; 40414; TypeMismatch.
    """
    Namespace(request.db, request.collection).check_valid()
    cursors = request.fields.get(b"cursors")
    if cursors is None:
        raise missing_field(f"{_STRUCT}.cursors")
    if cursors[0] != ARRAY:
        raise wrong_type(f"{_STRUCT}.cursors", cursors[0], "array")
    found: list[int] = []
    for name, span in spans(request.body, cursors[2]):
        if span[0] != INT64:
            raise wrong_type(f"{_STRUCT}.cursors.{name.decode(errors='replace')}", span[0], "long")
        found.append(decode_value(request.body, span))
    return found
