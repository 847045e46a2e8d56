"""Session ids that clients must not use, because daemons use them on their mongods for their own operations.

A client that wrote in such a session would abort the daemon's transaction there. Its transaction number could even
prevent mongod from executing anything more in that session.
"""

from typing import Final

from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.request import Request

RESERVED_ID_START: Final = b"Shardwright"
"""The prefix of all reserved ids.

No random UUID has it, because the upper half of its seventh byte is the version, 4.
"""

_LSID: Final = b"lsid"


def refuse_reserved_session(request: Request) -> None:
    """Refuse a client's request that uses a reserved session (Unauthorized)."""
    span = request.fields.get(_LSID)
    if span is not None and request.body.find(RESERVED_ID_START, span[2], span[3]) >= 0:
        raise CommandError(ErrorCode.Unauthorized, "not authorized to use a session that is reserved for daemons")
