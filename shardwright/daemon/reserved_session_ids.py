"""Sessions that no client may name, since daemons use them on their mongods for what must not be interfered with.

A client that wrote under such an id would end what a daemon does there; the number of its transaction could even keep
mongod from executing anything further in that session.
"""

from typing import Final

from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.request import Request

RESERVED_ID_START: Final = b"Shardwright"
"""How the ids of all such sessions begin. No random UUID does: its seventh byte begins with the version, 4."""

_LSID: Final = b"lsid"


def refuse_reserved_session(request: Request) -> None:
    """Let a client's request pass if it is not in a reserved session.

    Raises:
        CommandError: Unauthorized, it is.
    """
    span = request.fields.get(_LSID)
    if span is not None and request.body.find(RESERVED_ID_START, span[2], span[3]) >= 0:
        raise CommandError(ErrorCode.Unauthorized, "not authorized to use a session that is reserved for daemons")
