"""Recording the session that each command uses, after a check of its session and transaction fields."""

from time import time
from typing import Final

from shardwright.daemon.reserved_session_ids import refuse_reserved_session
from shardwright.router.operations.operation import Operation
from shardwright.router.operations.router_command import RouterCommand
from shardwright.sharding.operation_session import (
    AUTOCOMMIT,
    LSID,
    START_TRANSACTION,
    TXN_NUMBER,
    WITHOUT_USER,
    check_transaction_fields,
)
from shardwright.sharding.session_cache import SessionId
from shardwright.wire.errors import wrong_type
from shardwright.wire.rawbson import OBJECT

_NOT_A_USE: Final = WITHOUT_USER | {
    *("endSessions", "killAllSessions", "killAllSessionsByPattern", "killSessions", "refreshSessions"),
}
"""Commands that do not use the session they are sent with: they need no user, or are about sessions."""


SESSION_FIELDS: Final = (b"lsid", TXN_NUMBER, AUTOCOMMIT, START_TRANSACTION)
"""Only requests with one of these fields use a session."""


def use_session(operation: Operation, _: RouterCommand) -> None:
    """Record the use of a command's session, which belongs to the command's user.

    Raises:
        CommandError: Unauthorized for a session reserved for daemons; TooManyLogicalSessions; or an error of
            `check_lsid` or `check_transaction_fields`.
    """
    request, sessions = operation.request, operation.context.sessions
    fields = request.fields
    span = fields.get(b"lsid")
    if span is not None:
        if span[0] != OBJECT:
            raise wrong_type(LSID, span[0], "object")
        lsid = request.body[span[2] : span[3]]
        if request.name in _NOT_A_USE:
            refuse_reserved_session(request)
            SessionId.read(lsid)
        elif not sessions.use_again(lsid, time()):
            refuse_reserved_session(request)
            sessions.use(lsid, time(), operation.user_name)
    if TXN_NUMBER in fields or AUTOCOMMIT in fields or START_TRANSACTION in fields:
        check_transaction_fields(request)
