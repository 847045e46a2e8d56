"""``listCollections``."""

from typing import Final

from bson.raw_bson import RawBSONDocument

from shardwright.router.access.visible import visible_collections
from shardwright.router.commands.command_registry import command
from shardwright.router.commands.cursor_argument import check_cursor
from shardwright.router.operations.cursor_opening import open_on_one_shard
from shardwright.router.operations.operation import Operation
from shardwright.router.operations.retry import with_database
from shardwright.router.operations.scatter import forwarded
from shardwright.router.placement.database_routing import DatabaseRouting
from shardwright.router.replies.cursor_reply import empty_cursor
from shardwright.router.replies.own_reply import Reply
from shardwright.sharding.namespace import Namespace
from shardwright.wire.arguments import Arguments, Strictness
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.rawbson import append, encode_elements, without
from shardwright.wire.request import Request

_AUTHORIZED: Final = b"authorizedCollections"


@command("listCollections", reads=True, api_versions=("1",))
async def list_collections(operation: Operation) -> Reply:
    """The collections and views of a database, all of which its primary shard knows."""
    db, body = operation.request.db, _body(operation)

    async def attempt(database: DatabaseRouting) -> bytes:
        frame = forwarded(operation, database.element, body)
        return await open_on_one_shard(operation, database.primary, frame, preference=operation.read_preference)

    try:
        return await with_database(operation, db, attempt)
    except CommandError as error:
        if error.code != ErrorCode.NamespaceNotFound:
            raise
        _check_arguments(operation.request)
        return empty_cursor(str(Namespace.list_collections(db)))


def _body(operation: Operation) -> bytes:
    """The request for a shard, which sees no user: it finds what the user may see, if that is asked for."""
    request, access = operation.request, operation.context.access
    if access is None or request.get(_AUTHORIZED) is not True:
        return request.body
    visible = visible_collections(access.privileges_of(operation.client), request.db)
    given = request.raw_object(b"filter")
    query = visible if given is None else {"$and": [visible, RawBSONDocument(given)]}
    return append(without(request.body, {b"filter"}), encode_elements({"filter": query}))


def _check_arguments(request: Request) -> None:
    """Refuse what the primary shard would refuse, for a database that has none.

    Raises:
        CommandError: 40415, TypeMismatch, 51024.
    """
    arguments = Arguments.of(request)
    arguments.refuse_unknown((b"listCollections", b"filter", b"nameOnly", _AUTHORIZED, b"cursor"))
    arguments.maybe_raw(b"filter")
    for name in (b"nameOnly", _AUTHORIZED):
        arguments.boolean(name, strictness=Strictness.BOOL)
    check_cursor(arguments)
