"""``killCursors``: ends cursors that their client needs no longer."""

from typing import Final

import bson

from router.operation import Operation
from router.reads.arguments import missing_field, wrong_type
from router.registry import Reply, command
from wire.error_codes import ErrorCode
from wire.errors import CommandError
from wire.rawbson import ARRAY, INT64, STRING, decode_value, spans
from wire.request import Request
from wire.type_names import type_name

_STRUCT: Final = "killCursors"


@command("killCursors", api_versions=("1",))
async def kill_cursors(operation: Operation) -> Reply:
    """Ends cursors by their ids."""
    killed: list[bson.Int64] = []
    not_found: list[bson.Int64] = []
    for cursor_id in _cursor_ids(operation.request):
        found = operation.router.cursors.kill(cursor_id, operation.request.db)
        (killed if found else not_found).append(bson.Int64(cursor_id))
    return {"cursorsKilled": killed, "cursorsNotFound": not_found, "cursorsAlive": [], "cursorsUnknown": []}


def _cursor_ids(request: Request) -> list[int]:
    """The ids to kill.

    Raises:
        CommandError: BadValue for a collection name that is no string; 40414; TypeMismatch.
    """
    kind = next(iter(request.fields.values()))[0]
    if kind != STRING:
        raise CommandError(ErrorCode.BadValue, f"collection name has invalid type {type_name(kind)}")
    cursors = request.fields.get(b"cursors")
    if cursors is None:
        raise missing_field(f"{_STRUCT}.cursors")
    if cursors[0] != ARRAY:
        raise wrong_type(f"{_STRUCT}.cursors", cursors[0], "array")
    found: list[int] = []
    for name, span in spans(request.body, cursors[2]):
        if span[0] != INT64:
            raise wrong_type(f"{_STRUCT}.cursors.{name.decode()}", span[0], "long")
        found.append(decode_value(request.body, span))
    return found
